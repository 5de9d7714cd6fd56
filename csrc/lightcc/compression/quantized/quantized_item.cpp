#include "lightcc/compression/quantized/quantized_item.hpp"

#include <algorithm>
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

Status QuantizedItem::encode(KernelCalls& /*calls*/) {
  std::vector<ShardRange> parts{part_of(0)};
  for (std::size_t block = 1; is_cut() && block < position().blocks; ++block) {
    parts.push_back(part_of(block));
  }
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    bytes += bytes_to(i);
  }
  own_ = make_compressed_buffer(bytes);
  LIGHTCC_ASSIGN_OR_RETURN(
      const bool finite,
      host_residual().quantize(input(),
                               parts,
                               is_cut() ? std::optional(position().block) : std::nullopt,
                               format_.compressor,
                               {own_.get(), bytes}));
  non_finite_ = !finite;
  return {};
}

void QuantizedItem::finish_encoding() {
  std::size_t sent = (position().blocks - 1) * bytes_for(position().block);
  for (std::size_t block = 0; is_cut() && block < position().blocks; ++block) {
    sent += bytes_to(block);
  }
  count(sent, 1);
}

// --- Between blocks -----------------------------------------------------------------------------

Status QuantizedItem::write_for(std::size_t block, std::byte* to) const {
  std::size_t before = 0;
  for (std::size_t other = 0; is_cut() && other < block; ++other) {
    before += bytes_to(other);
  }
  std::copy_n(own_.get() + before, bytes_to(block), to);
  return {};
}

void QuantizedItem::receive(std::size_t block, const std::byte* from, const SharedBuffer& memory) {
  all_ = memory;
  if (!is_cut() || block != position().block) {
    parts_.emplace_back(from, bytes_for(position().block));
  }
}

void QuantizedItem::receive_sum(std::byte* at, const SharedBuffer& memory) {
  sums_ = memory;
  sum_parts_.push_back(at);
}

Status QuantizedItem::read_codes() {
  const std::size_t elements = part_of(position().block).size_elems();
  for (const std::span<const std::byte> codes : parts_) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool non_finite, check_quantized(codes, elements, format_));
    non_finite_ = non_finite_ || non_finite;
  }
  return {};
}

Status QuantizedItem::quantize_sum() {
  const ShardRange range = part_of(position().block);
  const std::span<std::byte> sum(sum_parts_[position().block], bytes_of(range));
  LIGHTCC_RETURN_IF_ERROR(read_codes());
  if (non_finite_) {
    // Here or elsewhere: who has this part learns it from the sum.
    write_non_finite(range.size_elems(), format_.bits(), sum);
    return {};
  }
  return host_residual().quantize_sum(parts_, range, format_.compressor, sum).status();
}

Status QuantizedItem::read_results() {
  if (!is_cut()) {
    return read_codes();
  }
  parts_.clear();
  for (std::size_t block = 0; block < position().blocks; ++block) {
    parts_.emplace_back(sum_parts_[block], bytes_for(block));
    LIGHTCC_ASSIGN_OR_RETURN(const bool non_finite,
                             check_quantized(parts_.back(), part_of(block).size_elems(), format_));
    non_finite_ = non_finite_ || non_finite;
  }
  return {};
}

// --- Within the block again ---------------------------------------------------------------------

/// Whether the step is skipped for the own shard.
void QuantizedItem::add_member_header(std::vector<std::uint64_t>& header) const {
  header.push_back(non_finite_ ? 1 : 0);
}

Status QuantizedItem::read_member_headers(const std::uint64_t* headers, std::size_t stride) {
  for (std::size_t member = 0; member < position().members; ++member) {
    non_finite_ = non_finite_ || headers[member * stride] != 0;
  }
  return {};
}

Status QuantizedItem::finish_step(KernelCalls& calls) {
  conclude(calls);
  if (!non_finite_) {
    write_result();
  }
  return {};
}

void QuantizedItem::add_results(GatheredSpans& spans) {
  if (!non_finite_ || job().gathers_shards) {
    add_shards(spans.shards);
  }
}

/// The sum of all blocks, in the dtype.
void QuantizedItem::write_result() {
  const auto decode = [&](Parts parts, const ShardRange& range) {
    dequantize(parts,
               range.size_elems(),
               format_,
               late_factor(),
               result() + to_bytes(range.begin),
               detect_simd_level());
  };
  if (!is_cut()) {
    return decode(parts_, part_of(0));
  }
  for (std::size_t block = 0; block < position().blocks; ++block) {
    decode({&parts_[block], 1}, part_of(block));
  }
}

}  // namespace lightcc
