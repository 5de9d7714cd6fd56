#include "lightcc/compression/quantized_item.hpp"

#include <numeric>
#include <optional>
#include <utility>

namespace lightcc {

QuantizedItem::QuantizedItem(CompressedTensor tensor, const CompressedJob& job)
    : CompressedItem(std::move(tensor), job),
      format_{.dtype = job.reduction.dtype, .compressor = job.spec.compressor} {}

/// The part of the own shard that `block` adds up; all of it where nobody has a part.
ShardRange QuantizedItem::part_of(std::size_t block) const {
  return is_cut() ? quantized_part(shard().size_elems(), position().blocks, block)
                  : ShardRange{0, shard().size_elems()};
}

std::size_t QuantizedItem::bytes_of(const ShardRange& range) const {
  return quantized_bytes(range.size_elems(), format_.bits());
}

std::vector<std::size_t> QuantizedItem::bytes_of_parts() const {
  std::vector<std::size_t> bytes;
  bytes.reserve(position().blocks);
  for (std::size_t block = 0; block < position().blocks; ++block) {
    bytes.push_back(bytes_of(part_of(block)));
  }
  return bytes;
}

/// What travels between blocks of `bytes` for each: the own part does not.
std::vector<std::size_t> QuantizedItem::without_own(std::vector<std::size_t> bytes) const {
  bytes[position().block] = 0;
  return bytes;
}

Status QuantizedItem::add_compression(KernelCalls& calls) {
  std::vector<ShardRange> parts{part_of(0)};
  for (std::size_t block = 1; is_cut() && block < position().blocks; ++block) {
    parts.push_back(part_of(block));
  }
  const std::vector<std::size_t> sent =
      is_cut() ? without_own(bytes_of_parts()) : std::vector{bytes_of(parts[0])};
  const std::size_t bytes = std::accumulate(sent.begin(), sent.end(), std::size_t{0});
  own_ = make_compressed_buffer(bytes);
  LIGHTCC_ASSIGN_OR_RETURN(
      std::unique_ptr<Work> work,
      state().quantize(input(),
                       parts,
                       is_cut() ? std::optional(position().block) : std::nullopt,
                       format_.compressor,
                       {own_.get(), bytes},
                       non_finite_));
  calls.add(std::move(work));
  return {};
}

void QuantizedItem::finish_compression() {
  const std::vector<std::size_t> parts = bytes_of_parts();
  std::size_t sent = parts[position().block];  // To each of the others, in the end.
  sent *= position().blocks - 1;
  if (is_cut()) {
    sent += std::accumulate(parts.begin(), parts.end(), std::size_t{0}) - parts[position().block];
  }
  count(sent, 1);
}

// --- Between blocks -----------------------------------------------------------------------------

Result<std::unique_ptr<Work>> QuantizedItem::next_exchange(Group& inter) {
  if (next_ == Step::kCodes) {
    next_ = is_cut() ? Step::kSum : Step::kResults;
    return exchange_codes(inter);
  }
  if (next_ == Step::kSum) {
    next_ = Step::kSums;
    LIGHTCC_ASSIGN_OR_RETURN(std::unique_ptr<Work> work, quantize_sum());
    if (work != nullptr) {
      return work;
    }
  }
  if (next_ == Step::kSums) {
    next_ = Step::kResults;
    return exchange_sums(inter);
  }
  LIGHTCC_RETURN_IF_ERROR(is_cut() ? read_sums() : read_codes());
  return std::unique_ptr<Work>();
}

std::unique_ptr<Work> QuantizedItem::exchange_codes(Group& inter) {
  const std::size_t bytes = bytes_of(part_of(position().block));
  const std::vector<std::size_t> same(position().blocks, bytes);
  all_ = make_compressed_buffer(bytes * senders());
  return is_cut() ? inter.alltoall(
                        own_.get(), without_own(bytes_of_parts()), all_.get(), without_own(same))
                  : inter.allgather(own_.get(), all_.get(), same);
}

/// The others' codes of the own part, or everybody's of the shard that nobody has parts of.
Status QuantizedItem::read_codes() {
  const ShardRange range = part_of(position().block);
  const std::size_t bytes = bytes_of(range);
  for (std::size_t sender = 0; sender < senders(); ++sender) {
    parts_.emplace_back(all_.get() + sender * bytes, bytes);
    LIGHTCC_ASSIGN_OR_RETURN(const bool is_void,
                             check_quantized(parts_.back(), range.size_elems(), format_));
    non_finite_ = non_finite_ || is_void;
  }
  return {};
}

Result<std::unique_ptr<Work>> QuantizedItem::quantize_sum() {
  const ShardRange range = part_of(position().block);
  const std::size_t bytes = bytes_of(range);
  sum_ = make_compressed_buffer(bytes);
  LIGHTCC_RETURN_IF_ERROR(read_codes());
  if (non_finite_) {
    // Here or elsewhere: who has this part learns it from the sum.
    write_void(range.size_elems(), format_.bits(), {sum_.get(), bytes});
    return std::unique_ptr<Work>();
  }
  return state().quantize_sum(parts_, range, format_.compressor, {sum_.get(), bytes}, sum_is_void_);
}

std::unique_ptr<Work> QuantizedItem::exchange_sums(Group& inter) {
  non_finite_ = non_finite_ || sum_is_void_;
  std::vector<std::size_t> bytes = bytes_of_parts();
  sums_ = make_compressed_buffer(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}));
  return inter.allgather(sum_.get(), sums_.get(), std::move(bytes));
}

Status QuantizedItem::read_sums() {
  parts_.clear();
  const std::byte* next = sums_.get();
  for (std::size_t block = 0; block < position().blocks; ++block) {
    const ShardRange range = part_of(block);
    parts_.emplace_back(next, bytes_of(range));
    next += parts_.back().size();
    LIGHTCC_ASSIGN_OR_RETURN(const bool is_void,
                             check_quantized(parts_.back(), range.size_elems(), format_));
    non_finite_ = non_finite_ || is_void;
  }
  return {};
}

// --- Within the block again ---------------------------------------------------------------------

/// Whether the step is void for the own shard.
void QuantizedItem::add_member_header(std::vector<std::uint64_t>& header) const {
  header.push_back(non_finite_ ? 1 : 0);
}

Status QuantizedItem::read_member_headers(const std::uint64_t* headers, std::size_t stride) {
  for (std::size_t member = 0; member < position().members; ++member) {
    non_finite_ = non_finite_ || headers[member * stride] != 0;
  }
  return {};
}

Status QuantizedItem::finish_shard(KernelCalls& calls) {
  conclude(calls);
  return non_finite_ ? Status() : write_result();
}

void QuantizedItem::add_results(GatheredSpans& spans) {
  if (!non_finite_ || job().gathers_shards) {
    add_shards(spans.shards);
  }
}

/// The sum of all blocks, in the dtype.
Status QuantizedItem::write_result() {
  if (!is_cut()) {
    return kernels().dequantize(parts_, shard().size_elems(), format_, late_factor(), result());
  }
  for (std::size_t block = 0; block < position().blocks; ++block) {
    const ShardRange range = part_of(block);
    LIGHTCC_RETURN_IF_ERROR(kernels().dequantize({&parts_[block], 1},
                                                 range.size_elems(),
                                                 format_,
                                                 late_factor(),
                                                 result() + to_bytes(range.begin)));
  }
  return {};
}

}  // namespace lightcc
