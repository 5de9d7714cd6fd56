#include "lightcc/compression/topk_item.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lightcc {
namespace {

// A header to other blocks: whether the list is void, then the bytes of the list or of its pieces.
// To other members: the same for all lists that this member got.
constexpr std::size_t kFirstSize = 1;

template <typename Number>
const std::byte* bytes_of(const std::vector<Number>& numbers) {
  return std::as_bytes(std::span(numbers)).data();
}

std::byte* writable_bytes_of(std::vector<std::uint64_t>& numbers) {
  return std::as_writable_bytes(std::span(numbers)).data();
}

Status broken_header() {
  return make_error(ErrorCode::kPeerFailed,
                    "a rank announced a top-k list that is longer than any can be");
}

}  // namespace

TopkItem::TopkItem(CompressedTensor tensor, const CompressedJob& job)
    : CompressedItem(std::move(tensor), job),
      format_{.dtype = job.reduction.dtype, .fp16 = job.spec.fp16} {
  const CompressionSpec& spec = job.spec;
  const double ratio = topk_warmup_ratio(steps(), spec.warmup_steps, spec.ratio);
  k_ = topk_k(shard().size_elems(), ratio);
  capacity_ = spec.exact ? k_ : topk_capacity(k_, shard().size_elems());
  plan_ = plan_topk(span().count, position().members, position().blocks, ratio, format_);
  plan_.gather_lists = plan_.gather_lists && !job.gathers_shards;
}

ShardRange TopkItem::piece_of(std::size_t block) const {
  return topk_shard(shard().size_elems(), position().blocks, block, job().reduction.dtype);
}

Status TopkItem::add_compression(KernelCalls& calls) {
  if (plan_.exchange == TopkExchange::kDense) {
    outcome_.passes = 1;
    LIGHTCC_ASSIGN_OR_RETURN(std::unique_ptr<Work> work,
                             state().flush(input(), result(), job().spec.momentum));
    calls.add(std::move(work));
    return {};
  }
  const std::size_t room = max_list_bytes(shard().size_elems(), capacity_, format_);
  own_ = make_compressed_buffer(room);
  const TopkRequest request{.k = k_,
                            .capacity = capacity_,
                            .exact = job().spec.exact,
                            .fp16 = job().spec.fp16,
                            .momentum = job().spec.momentum};
  calls.add(kernels(),
            TopkStep{.state = &state(),
                     .shard = input(),
                     .request = request,
                     .list = {own_.get(), room},
                     .outcome = &outcome_});
  return {};
}

void TopkItem::finish_compression() {
  non_finite_ = outcome_.non_finite;
  const std::size_t blocks = position().blocks;
  const std::size_t dense = 2 * (blocks - 1) * to_bytes(shard().size_elems()) / blocks;
  std::size_t sent = dense;
  if (plan_.exchange == TopkExchange::kLists) {
    sent = (blocks - 1) * outcome_.bytes;
  } else if (plan_.exchange == TopkExchange::kPieces) {
    sent = (blocks - 1) * outcome_.bytes / blocks + dense / 2;
  }
  count(sent, static_cast<std::uint64_t>(outcome_.passes));
}

// --- Between blocks -----------------------------------------------------------------------------

Result<std::unique_ptr<Work>> TopkItem::next_exchange(Group& inter) {
  const int step = exchanged_++;
  if (plan_.exchange == TopkExchange::kDense) {
    if (step == 0) {
      return exchange_dense(inter);
    }
    return step == 1 ? kernels().check_finite(
                           result(), shard().size_elems(), job().reduction.dtype, non_finite_)
                     : std::unique_ptr<Work>();
  }
  if (step == 0) {
    return exchange_headers(inter);
  }
  if (step == 1) {
    LIGHTCC_RETURN_IF_ERROR(read_headers());
    if (non_finite_) {
      exchanged_ = 4;  // The lists are void, and everybody knows.
      return std::unique_ptr<Work>();
    }
    return plan_.exchange == TopkExchange::kLists ? exchange_lists(inter) : exchange_pieces(inter);
  }
  if (step == 2 && plan_.exchange == TopkExchange::kPieces) {
    LIGHTCC_ASSIGN_OR_RETURN(std::unique_ptr<Work> work, merge_piece());
    if (work != nullptr) {
      return work;
    }
    ++exchanged_;
    return exchange_merged(inter);
  }
  if (step == 3 && plan_.exchange == TopkExchange::kPieces) {
    return exchange_merged(inter);
  }
  return std::unique_ptr<Work>();
}

std::unique_ptr<Work> TopkItem::exchange_dense(Group& inter) {
  return inter.allreduce({{.in = result(), .out = result(), .count = shard().size_elems()}},
                         late_reduction());
}

std::unique_ptr<Work> TopkItem::exchange_headers(Group& inter) {
  header_.assign(1, non_finite_ ? 1 : 0);
  if (plan_.exchange == TopkExchange::kLists || non_finite_) {
    header_.resize(plan_.exchange == TopkExchange::kLists ? 2 : 1 + position().blocks,
                   outcome_.bytes);
  } else {
    const auto list = parse_list({own_.get(), outcome_.bytes}, shard().size_elems(), format_);
    for (std::size_t block = 0; block < position().blocks; ++block) {
      const ShardRange piece = piece_of(block);
      header_.push_back(list.ok() ? list_range_bytes(*list, piece.begin, piece.end) : 0);
    }
  }
  headers_.resize(position().blocks * header_.size());
  const std::size_t bytes = header_.size() * sizeof(std::uint64_t);
  return inter.allgather(bytes_of(header_),
                         writable_bytes_of(headers_),
                         std::vector<std::size_t>(position().blocks, bytes));
}

/// Finds out what the other blocks will send.
Status TopkItem::read_headers() {
  const bool cut = plan_.exchange == TopkExchange::kPieces;
  const ShardRange piece = cut ? piece_of(position().block) : ShardRange{0, shard().size_elems()};
  const std::size_t maximum = max_list_bytes(piece.size_elems(),
                                             std::min(capacity_, piece.size_elems()),
                                             format_,
                                             piece.begin % kTopkBlockElems);
  sizes_.clear();
  for (std::size_t block = 0; block < position().blocks; ++block) {
    const std::uint64_t* header = headers_.data() + block * header_.size();
    non_finite_ = non_finite_ || header[0] != 0;
    sizes_.push_back(header[kFirstSize + (cut ? position().block : 0)]);
    if (sizes_.back() > maximum) {
      return broken_header();
    }
  }
  lists_bytes_ = std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0});
  return {};
}

std::unique_ptr<Work> TopkItem::exchange_lists(Group& inter) {
  lists_ = make_compressed_buffer(lists_bytes_);
  return inter.allgather(own_.get(), lists_.get(), {sizes_.begin(), sizes_.end()});
}

Result<std::unique_ptr<Work>> TopkItem::exchange_pieces(Group& inter) {
  LIGHTCC_ASSIGN_OR_RETURN(const TopkListView list,
                           parse_list({own_.get(), outcome_.bytes}, shard().size_elems(), format_));
  const std::vector<std::size_t> send(header_.begin() + kFirstSize, header_.end());
  pieces_ = make_compressed_buffer(std::accumulate(send.begin(), send.end(), std::size_t{0}));
  std::byte* next = pieces_.get();
  for (std::size_t block = 0; block < position().blocks; ++block) {
    const ShardRange piece = piece_of(block);
    LIGHTCC_ASSIGN_OR_RETURN(const std::size_t written,
                             write_list_range(list, piece.begin, piece.end, {next, send[block]}));
    next += written;
  }
  lists_ = make_compressed_buffer(lists_bytes_);
  return inter.alltoall(pieces_.get(), send, lists_.get(), {sizes_.begin(), sizes_.end()});
}

Result<std::unique_ptr<Work>> TopkItem::merge_piece() {
  const ShardRange piece = piece_of(position().block);
  LIGHTCC_ASSIGN_OR_RETURN(
      const TopkSum sum,
      sum_of({lists_.get(), lists_bytes_}, sizes_, piece, result() + to_bytes(piece.begin)));
  return kernels().merge_all({&sum, 1});
}

std::unique_ptr<Work> TopkItem::exchange_merged(Group& inter) {
  const ShardRange piece = piece_of(position().block);
  std::vector<std::size_t> bytes;
  bytes.reserve(position().blocks);
  for (std::size_t block = 0; block < position().blocks; ++block) {
    bytes.push_back(to_bytes(piece_of(block).size_elems()));
  }
  return inter.allgather(result() + to_bytes(piece.begin), result(), std::move(bytes));
}

Result<TopkSum> TopkItem::sum_of(std::span<const std::byte> bytes,
                                 std::span<const std::uint64_t> sizes,
                                 const ShardRange& range,
                                 std::byte* out) const {
  TopkSum sum{.lists = {},
              .out = out,
              .elements = range.size_elems(),
              .dtype = job().reduction.dtype,
              .postscale = late_factor()};
  sum.lists.reserve(sizes.size());
  for (const std::uint64_t size : sizes) {
    LIGHTCC_ASSIGN_OR_RETURN(
        const TopkListView list,
        parse_list(bytes.first(size), range.size_elems(), format_, range.begin % kTopkBlockElems));
    sum.lists.push_back(list);
    bytes = bytes.subspan(size);
  }
  return sum;
}

// --- Within the block again ---------------------------------------------------------------------

std::unique_ptr<Work> TopkItem::gather_headers(Group& intra) {
  header_.assign(1, non_finite_ ? 1 : 0);
  header_.insert(header_.end(), sizes_.begin(), sizes_.end());
  header_.resize(kFirstSize + position().blocks);
  headers_.resize(position().members * header_.size());
  const std::size_t bytes = header_.size() * sizeof(std::uint64_t);
  return intra.allgather(bytes_of(header_),
                         writable_bytes_of(headers_),
                         std::vector<std::size_t>(position().members, bytes));
}

/// Where lists are gathered, nothing is merged before that.
Status TopkItem::finish_shard(KernelCalls& calls) {
  const bool is_alone = position().members == 1;
  if (!is_alone) {
    LIGHTCC_RETURN_IF_ERROR(read_gathered_headers());
  }
  conclude(calls);
  const bool merges = plan_.exchange == TopkExchange::kLists && !non_finite_ &&
                      (is_alone ? span().out != nullptr : !plan_.gather_lists);
  if (!merges) {
    return {};
  }
  LIGHTCC_ASSIGN_OR_RETURN(TopkSum sum,
                           sum_of({lists_.get(), lists_bytes_},
                                  sizes_,
                                  {0, shard().size_elems()},
                                  is_alone ? span().out : result()));
  calls.add(kernels(), std::move(sum));
  return {};
}

Status TopkItem::read_gathered_headers() {
  totals_.assign(position().members, 0);
  for (std::size_t member = 0; member < position().members; ++member) {
    const std::uint64_t* header = headers_.data() + member * header_.size();
    non_finite_ = non_finite_ || header[0] != 0;
    const std::size_t elements = shard_of(member).size_elems();
    const std::size_t maximum = max_list_bytes(elements, elements, format_);
    for (std::size_t block = 0; block < position().blocks; ++block) {
      const std::uint64_t size = header[kFirstSize + block];
      if (size > maximum) {
        return broken_header();
      }
      totals_[member] += size;
    }
  }
  return {};
}

std::unique_ptr<Work> TopkItem::gather_results(Group& intra) {
  if (non_finite_ && !job().gathers_shards) {
    return nullptr;
  }
  if (!plan_.gather_lists) {
    return gather_dense(intra);
  }
  all_lists_ =
      make_compressed_buffer(std::accumulate(totals_.begin(), totals_.end(), std::size_t{0}));
  return intra.allgather(lists_.get(), all_lists_.get(), totals_);
}

/// Where lists were gathered.
Status TopkItem::finish_tensor(KernelCalls& calls) {
  if (!plan_.gather_lists || non_finite_ || span().out == nullptr) {
    return {};
  }
  const std::byte* lists = all_lists_.get();
  for (std::size_t member = 0; member < position().members; ++member) {
    const std::span<const std::uint64_t> sizes(
        headers_.data() + member * header_.size() + kFirstSize, position().blocks);
    const ShardRange shard = shard_of(member);
    LIGHTCC_ASSIGN_OR_RETURN(TopkSum sum,
                             sum_of({lists, totals_[member]},
                                    sizes,
                                    {0, shard.size_elems()},
                                    span().out + to_bytes(shard.begin)));
    calls.add(kernels(), std::move(sum));
    lists += totals_[member];
  }
  return {};
}

}  // namespace lightcc
