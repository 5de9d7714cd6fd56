#include "lightcc/compression/topk/topk_item.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lightcc/compression/topk/finite.hpp"
#include "lightcc/compression/topk/packed_list.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

namespace lightcc {
namespace {

// Where a header has the bytes of the list or of its pieces.
constexpr std::size_t kFirstSize = 1;

Status check_size(const char* who, std::size_t index, std::uint64_t bytes, std::size_t maximum) {
  if (bytes > maximum) {
    return make_error(ErrorCode::kPeerFailed,
                      "%s %zu announced a top-k list of %llu bytes, where at most %zu are possible",
                      who,
                      index,
                      static_cast<unsigned long long>(bytes),
                      maximum);
  }
  return {};
}

}  // namespace

TopkItem::TopkItem(CompressedTensor tensor, const CompressedJob& job)
    : CompressedItem(std::move(tensor), job),
      format_{.dtype = job.reduction.dtype, .fp16 = job.spec.fp16, .two_bits = job.spec.two_bits} {
  const CompressionSpec& spec = job.spec;
  const double ratio = topk_warmup_ratio(steps(), spec.warmup_steps, spec.ratio);
  k_ = topk_k(shard().size_elems(), ratio);
  capacity_ = spec.exact ? k_ : topk_capacity(k_, shard().size_elems());
  plan_ = plan_topk(span().count, position().members, position().blocks, ratio, format_);
  plan_.gather_lists = plan_.gather_lists && !job.gathers_shards;
}

ShardRange TopkItem::piece_of(std::size_t block) const {
  return shard_range(shard().size_elems(), position().blocks, block, job().reduction.dtype);
}

Status TopkItem::encode(KernelCalls& calls) {
  if (plan_.exchange == TopkExchange::kDense) {
    outcome_.passes = 1;
    const std::byte* const in = input();
    if (in == nullptr) {
      std::memset(result(), 0, to_bytes(shard().size_elems()));
    } else if (in != result()) {
      std::memcpy(result(), in, to_bytes(shard().size_elems()));
    }
    return host_residual().flush_into(result(), job().spec.momentum);
  }
  own_ = make_compressed_buffer(room());
  calls.add(kernels(),
            TopkStep{.state = &state(),
                     .shard = input(),
                     .request = {.k = k_,
                                 .capacity = capacity_,
                                 .exact = job().spec.exact,
                                 .fp16 = job().spec.fp16,
                                 .two_bits = job().spec.two_bits,
                                 .momentum = job().spec.momentum},
                     .list = {own_.get(), room()},
                     .outcome = &outcome_});
  return {};
}

void TopkItem::finish_encoding() {
  non_finite_ = outcome_.non_finite;
  std::size_t bytes = outcome_.bytes;  // The list takes so many as it travels.
  if (format_.packs() && !non_finite_ && plan_.exchange != TopkExchange::kDense) {
    const std::size_t elements = shard().size_elems();
    if (const auto list = parse_list({own_.get(), bytes}, elements, format_); list.ok()) {
      bytes = packed_range_bytes(*list, 0, elements);
      if (plan_.exchange == TopkExchange::kLists) {  // Pieces are packed one by one.
        CompressedBuffer packed = make_compressed_buffer(bytes);
        pack_range(*list, 0, elements, packed.get());
        own_ = std::move(packed);
        outcome_.bytes = bytes;
      }
    }
  }
  const std::size_t blocks = position().blocks;
  const std::size_t dense = 2 * (blocks - 1) * to_bytes(shard().size_elems()) / blocks;
  std::size_t sent = dense;
  if (plan_.exchange == TopkExchange::kLists) {
    sent = (blocks - 1) * bytes;
  } else if (plan_.exchange == TopkExchange::kPieces) {
    sent = (blocks - 1) * bytes / blocks + dense / 2;
  }
  count(sent, static_cast<std::uint64_t>(outcome_.passes));
}

// --- Between blocks -----------------------------------------------------------------------------

std::size_t TopkItem::header_numbers() const {
  switch (plan_.exchange) {
    case TopkExchange::kLists:
      return kFirstSize + 1;
    case TopkExchange::kPieces:
      return kFirstSize + position().blocks;
    case TopkExchange::kDense:
      break;
  }
  return 0;
}

void TopkItem::add_header(std::vector<std::uint64_t>& header) {
  header.push_back(non_finite_ ? 1 : 0);
  if (plan_.exchange == TopkExchange::kLists) {
    header.push_back(outcome_.bytes);
    return;
  }
  const auto list = parse_list({own_.get(), outcome_.bytes}, shard().size_elems(), format_);
  piece_bytes_.assign(position().blocks, 0);
  for (std::size_t block = 0; list.ok() && block < position().blocks; ++block) {
    const ShardRange piece = piece_of(block);
    piece_bytes_[block] = format_.packs() && !non_finite_
                              ? packed_range_bytes(*list, piece.begin, piece.end)
                              : list_range_bytes(*list, piece.begin, piece.end);
  }
  header.insert(header.end(), piece_bytes_.begin(), piece_bytes_.end());
}

Status TopkItem::read_headers(const std::uint64_t* headers, std::size_t stride) {
  const bool cut = plan_.exchange == TopkExchange::kPieces;
  const std::size_t own = position().block;
  const ShardRange piece = cut ? piece_of(own) : ShardRange{0, shard().size_elems()};
  const std::size_t max_entries = std::min(capacity_, piece.size_elems());
  const std::size_t phase = piece.begin % kTopkBlockElems;
  const std::size_t maximum = format_.packs()
                                  ? max_packed_bytes(piece.size_elems(), max_entries, phase)
                                  : max_list_bytes(piece.size_elems(), max_entries, format_, phase);
  sizes_.assign(position().blocks, 0);
  for (std::size_t block = 0; block < position().blocks; ++block) {
    const std::uint64_t* const header = headers + block * stride;
    const std::uint64_t bytes = header[kFirstSize + (cut ? own : 0)];
    LIGHTCC_RETURN_IF_ERROR(check_size("block", block, bytes, maximum));
    sizes_[block] = block == own ? bytes_to(own) : static_cast<std::size_t>(bytes);
    non_finite_ = non_finite_ || header[0] != 0;
  }
  lists_.assign(position().blocks, {});
  return {};
}

std::size_t TopkItem::bytes_to(std::size_t block) const {
  return plan_.exchange == TopkExchange::kPieces ? piece_bytes_[block] : outcome_.bytes;
}

Status TopkItem::write_for(std::size_t block, std::byte* to) const {
  if (plan_.exchange == TopkExchange::kLists) {
    std::copy_n(own_.get(), outcome_.bytes, to);
    return {};
  }
  LIGHTCC_ASSIGN_OR_RETURN(const TopkListView list,
                           parse_list({own_.get(), outcome_.bytes}, shard().size_elems(), format_));
  const ShardRange piece = piece_of(block);
  if (format_.packs()) {
    pack_range(list, piece.begin, piece.end, to);
    return {};
  }
  return write_list_range(list, piece.begin, piece.end, {to, piece_bytes_[block]}).status();
}

void TopkItem::receive(std::size_t block, const std::byte* from, const SharedBuffer& memory) {
  received_ = memory;
  lists_[block] = {from, sizes_[block]};
}

Status TopkItem::unpack() {
  if (!format_.packs()) {
    return {};
  }
  const bool cut = plan_.exchange == TopkExchange::kPieces;
  const ShardRange piece = cut ? piece_of(position().block) : ShardRange{0, shard().size_elems()};
  const std::size_t phase = piece.begin % kTopkBlockElems;
  std::vector<std::size_t> bytes;
  for (const std::span<const std::byte> list : lists_) {
    LIGHTCC_ASSIGN_OR_RETURN(bytes.emplace_back(),
                             unpacked_bytes(list, piece.size_elems(), format_, phase));
  }
  unpacked_ = make_compressed_buffer(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}));
  std::byte* next = unpacked_.get();
  for (std::size_t block = 0; block < lists_.size(); ++block) {
    unpack_list(lists_[block], piece.size_elems(), format_, phase, {next, bytes[block]});
    lists_[block] = {next, bytes[block]};
    next += bytes[block];
  }
  sizes_ = std::move(bytes);
  received_.reset();
  return {};
}

Status TopkItem::add_piece(KernelCalls& calls) {
  const ShardRange piece = piece_of(position().block);
  LIGHTCC_ASSIGN_OR_RETURN(TopkSum sum, sum_of(lists_, piece, result() + to_bytes(piece.begin)));
  calls.add(kernels(), std::move(sum));
  return {};
}

TensorSpan TopkItem::merged_piece(std::size_t block) {
  const ShardRange piece = piece_of(block);
  std::byte* const at = result() + to_bytes(piece.begin);
  return {.in = at, .out = at, .count = piece.size_elems()};
}

std::unique_ptr<Work> TopkItem::exchange_dense(Group& inter) {
  return inter.allreduce({{.in = result(), .out = result(), .count = shard().size_elems()}},
                         late_reduction());
}

void TopkItem::check_dense() {
  non_finite_ = !is_all_finite(result(), shard().size_elems(), job().reduction.dtype);
}

Result<TopkSum> TopkItem::sum_of(Lists lists, const ShardRange& range, std::byte* out) const {
  TopkSum sum{.lists = {},
              .out = out,
              .elements = range.size_elems(),
              .dtype = job().reduction.dtype,
              .postscale = late_factor()};
  sum.lists.reserve(lists.size());
  for (const std::span<const std::byte> bytes : lists) {
    LIGHTCC_ASSIGN_OR_RETURN(
        const TopkListView list,
        parse_list(bytes, range.size_elems(), format_, range.begin % kTopkBlockElems));
    sum.lists.push_back(list);
  }
  return sum;
}

// --- Within the block again ---------------------------------------------------------------------

void TopkItem::add_member_header(std::vector<std::uint64_t>& header) const {
  header.push_back(non_finite_ ? 1 : 0);
  if (plan_.gather_lists) {
    header.insert(header.end(), sizes_.begin(), sizes_.end());
  }
}

Status TopkItem::read_member_headers(const std::uint64_t* headers, std::size_t stride) {
  const std::size_t blocks = position().blocks;
  member_sizes_.clear();
  for (std::size_t member = 0; member < position().members; ++member) {
    const std::uint64_t* const header = headers + member * stride;
    non_finite_ = non_finite_ || header[0] != 0;
    const std::size_t elements = shard_of(member).size_elems();
    const std::size_t maximum = max_list_bytes(elements, elements, format_);
    for (std::size_t block = 0; plan_.gather_lists && block < blocks; ++block) {
      const std::uint64_t bytes = header[kFirstSize + block];
      LIGHTCC_RETURN_IF_ERROR(check_size("member", member, bytes, maximum));
      member_sizes_.push_back(member == position().member ? sizes_[block]
                                                          : static_cast<std::size_t>(bytes));
    }
  }
  return {};
}

/// Where lists are gathered, nothing is merged before that.
Status TopkItem::finish_step(KernelCalls& calls) {
  const bool is_alone = position().members == 1;
  conclude(calls);
  const bool merges = plan_.exchange == TopkExchange::kLists && !non_finite_ &&
                      (is_alone ? span().out != nullptr : !plan_.gather_lists);
  if (!merges) {
    return {};
  }
  LIGHTCC_ASSIGN_OR_RETURN(
      TopkSum sum, sum_of(lists_, {0, shard().size_elems()}, is_alone ? span().out : result()));
  calls.add(kernels(), std::move(sum));
  return {};
}

void TopkItem::add_results(GatheredSpans& spans) {
  if (non_finite_ && !job().gathers_shards) {
    return;
  }
  if (!plan_.gather_lists) {
    add_shards(spans.shards);
    return;
  }
  const std::size_t blocks = position().blocks;
  all_lists_ = make_compressed_buffer(
      std::accumulate(member_sizes_.begin(), member_sizes_.end(), std::size_t{0}));
  std::byte* next = all_lists_.get();
  for (std::size_t i = 0; i < member_sizes_.size(); ++i) {
    const std::size_t member = i / blocks;
    spans.lists.add(member,
                    {.in = member == position().member ? lists_[i % blocks].data() : nullptr,
                     .out = next,
                     .count = member_sizes_[i]});
    member_lists_.emplace_back(next, member_sizes_[i]);
    next += member_sizes_[i];
  }
}

/// Where lists were gathered.
Status TopkItem::decode(KernelCalls& calls) {
  if (!plan_.gather_lists || non_finite_ || span().out == nullptr) {
    return {};
  }
  const std::size_t blocks = position().blocks;
  for (std::size_t member = 0; member < position().members; ++member) {
    const ShardRange shard = shard_of(member);
    LIGHTCC_ASSIGN_OR_RETURN(TopkSum sum,
                             sum_of(Lists(member_lists_).subspan(member * blocks, blocks),
                                    {0, shard.size_elems()},
                                    span().out + to_bytes(shard.begin)));
    calls.add(kernels(), std::move(sum));
  }
  return {};
}

}  // namespace lightcc
