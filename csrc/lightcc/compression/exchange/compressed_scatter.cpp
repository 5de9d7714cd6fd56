// A compressed reduce-scatter: on the slow level only, as a compressed all-reduce.
//
//   stage 1  the members of a block reduce-scatter in memory, dense: each gets the block's sums of
//            the rows for its own position in all blocks
//   stage 2  it adds the residual of the rows of other blocks and encodes them, an all-to-all among
//            members of the same position brings each the codes of its own row, and it adds these
//            to its block's exact sum of that row
//   stage 3  after the last chunk, members of a block tell each other whether all was finite
//
//   bytes sent by each member through the transport   (m-1) c, c being the codes of a row: of N
//                                                     elements (m-1)/m c(N)/n
//
// Rounding. A row is rounded once by each block but its own, so an element has m-1 errors, not
// mn-1. What rounding takes away is kept, and added next time: (m-1) rows a member, where a member
// that encoded its own input would keep mn-1.
//
// Chunks. A row is cut into pieces (row_codes.hpp), and a chunk is some pieces of every row. So one
// chunk is encoded while another is on the network.
//
// Numbers. Of each row its block's sum comes first, then the others in the order of blocks; the
// factor and the rounding to the dtype come last. Chunks have no part in it.
//
// Not finite. Who meets a NaN or an infinity, in any row, says so to every block from then on, in
// the last chunk at the latest. So all members know it in the end: the result is NaN on all, and
// all residuals stay as they were.
#include "lightcc/compression/exchange/compressed_scatter.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/grid/grid_work.hpp"
#include "lightcc/collectives/sequence.hpp"
#include "lightcc/compression/exchange/compressed_item.hpp"
#include "lightcc/compression/exchange/row_codes.hpp"
#include "lightcc/compression/exchange/tensor_batches.hpp"
#include "lightcc/compression/topk/finite.hpp"

namespace lightcc {
namespace {

using Started = Result<std::unique_ptr<Work>>;

/// Which pieces of each row make a chunk.
std::vector<TensorBatch> chunks_of(const std::vector<RowPiece>& pieces) {
  std::vector<std::size_t> elements;
  elements.reserve(pieces.size());
  for (const RowPiece& piece : pieces) {
    elements.push_back(piece.elements());
  }
  return cut_for_exchange(elements, kExchangeElements);
}

class ScatterStages final : public PipelineStages {
 public:
  ScatterStages(std::vector<RowPiece> pieces,
                std::vector<TensorBatch> chunks,
                std::shared_ptr<GridState> grid,
                const TensorSpan& rows,
                std::shared_ptr<TensorResidual> entry,
                CompressedScatterJob job,
                std::size_t lead)
      : PipelineStages(ChunkSchedule(chunks.size(), lead)),
        pieces_(std::move(pieces)),
        chunks_(std::move(chunks)),
        grid_(std::move(grid)),
        rows_(rows),
        entry_(std::move(entry)),
        job_(std::move(job)),
        exchanges_(chunks_.size()) {
    if (grid_ != nullptr) {
      sums_ = make_compressed_buffer(blocks() * to_bytes(rows_.count));
    }
  }
  ScatterStages(const ScatterStages&) = delete;
  ScatterStages& operator=(const ScatterStages&) = delete;
  ~ScatterStages() override {
    if (entry_ != nullptr) {
      entry_->state->rollback();  // A step did not come to its end.
    }
  }

  std::unique_ptr<Work> start_scatter(std::size_t chunk) override;
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) override;
  std::unique_ptr<Work> start_gather(std::size_t chunk) override;

 private:
  /// Codes on their way, in the order of blocks; the own block's are none.
  struct Exchange {
    std::vector<std::size_t> bytes;
    CompressedBuffer sent;
    CompressedBuffer received;
  };

  std::size_t blocks() const { return job_.position.blocks; }
  std::size_t block() const { return job_.position.block; }
  DataType dtype() const { return job_.reduction.dtype; }
  std::size_t to_bytes(std::size_t elements) const { return elements * element_size(dtype()); }
  bool is_last(std::size_t chunk) const { return chunk + 1 == chunks_.size(); }
  std::span<const RowPiece> pieces_of(std::size_t chunk) const {
    return std::span(pieces_).subspan(chunks_[chunk].first,
                                      chunks_[chunk].end - chunks_[chunk].first);
  }
  ShardRange range_of(std::size_t chunk) const {
    return {pieces_of(chunk).front().range.begin, pieces_of(chunk).back().range.end};
  }
  /// Where this block's sum of the row for this position in `to` is, from element `begin` on. Null:
  /// zeros.
  const std::byte* sum_for(std::size_t to, std::size_t begin) const {
    const std::byte* const all = grid_ == nullptr ? rows_.in : sums_.get();
    return all == nullptr ? nullptr : all + to_bytes(to * rows_.count + begin);
  }
  /// The elements of the residual for a piece of that row; blocks but the own one have some.
  ShardRange residual_of(std::size_t to, const RowPiece& piece) const {
    const std::size_t row = (to < block() ? to : to - 1) * rows_.count;
    return {row + piece.range.begin, row + piece.range.end};
  }

  std::unique_ptr<Work> reduce_in_block(std::size_t chunk);
  Status encode(std::size_t chunk);
  bool encode_for(std::size_t to, const RowPiece& piece, std::span<std::byte> out);
  Status add_up(std::size_t chunk);
  void conclude();

  std::vector<RowPiece> pieces_;
  std::vector<TensorBatch> chunks_;
  std::shared_ptr<GridState> grid_;  // Null: blocks have one member.
  TensorSpan rows_;
  std::shared_ptr<TensorResidual> entry_;
  CompressedScatterJob job_;
  CompressedBuffer sums_;  // This block's, of the rows for this position in all blocks.
  std::vector<Exchange> exchanges_;
  bool non_finite_ = false;
  std::vector<std::uint64_t> flags_;  // What each member of the block knows of that.
};

std::unique_ptr<Work> ScatterStages::start_scatter(std::size_t chunk) {
  std::vector<Sequence::Start> starts;
  if (grid_ != nullptr) {
    starts.emplace_back([this, chunk] { return Started(reduce_in_block(chunk)); });
  }
  starts.emplace_back([this, chunk]() -> Started {
    LIGHTCC_RETURN_IF_ERROR(encode(chunk));
    return std::unique_ptr<Work>();
  });
  return std::make_unique<Sequence>(std::move(starts));
}

std::unique_ptr<Work> ScatterStages::reduce_in_block(std::size_t chunk) {
  const ShardRange range = range_of(chunk);
  MemberSpans spans(job_.position.members);
  for (std::size_t member = 0; member < job_.position.members; ++member) {
    for (std::size_t to = 0; to < blocks(); ++to) {
      const std::size_t row = grid_->flat(to, member) * rows_.count;
      spans.add(member,
                {.in = rows_.in == nullptr ? nullptr : rows_.in + to_bytes(row + range.begin),
                 .out = member == job_.position.member
                            ? sums_.get() + to_bytes(to * rows_.count + range.begin)
                            : nullptr,
                 .count = range.size_elems()});
    }
  }
  return grid_->levels.intra->reduce_scatter_bucket(
      spans.spans(), spans.counts(), within_blocks(job_.reduction));
}

Status ScatterStages::encode(std::size_t chunk) {
  if (chunk == 0 && entry_ != nullptr) {
    LIGHTCC_RETURN_IF_ERROR(entry_->state->on_host()->begin_quantizing());
  }
  const std::span<const RowPiece> pieces = pieces_of(chunk);
  const std::size_t bytes = pieces_bytes(pieces, dtype());
  Exchange& exchange = exchanges_[chunk];
  exchange.bytes.assign(blocks(), bytes);
  exchange.bytes[block()] = 0;
  exchange.sent = make_compressed_buffer((blocks() - 1) * bytes);
  std::span<std::byte> out(exchange.sent.get(), (blocks() - 1) * bytes);
  for (std::size_t to = 0; to < blocks(); ++to) {
    for (const RowPiece& piece : pieces) {
      const auto codes = out.first(to == block() ? 0 : piece_bytes(piece, dtype()));
      non_finite_ = !encode_for(to, piece, codes) || non_finite_;
      out = out.subspan(codes.size());
    }
  }
  for (std::size_t i = 0; non_finite_ && i + 1 < blocks(); ++i) {
    write_non_finite_pieces(pieces, dtype(), {exchange.sent.get() + i * bytes, bytes});
  }
  const std::size_t dense = (blocks() - 1) * to_bytes(range_of(chunk).size_elems());
  CompressionCounters& counters = *job_.counters;
  counters.tensors += chunk == 0 ? 1 : 0;
  counters.passes += chunk == 0 ? 1 : 0;
  counters.dense_bytes += dense;
  counters.sent_bytes += (blocks() - 1) * bytes;
  if (entry_ != nullptr) {
    entry_->usage.dense_bytes += dense;
    entry_->usage.sent_bytes += (blocks() - 1) * bytes;
  }
  return {};
}

/// Returns whether the piece is finite. The own block's is only looked at.
bool ScatterStages::encode_for(std::size_t to, const RowPiece& piece, std::span<std::byte> out) {
  const std::byte* const from = sum_for(to, piece.range.begin);
  if (to == block()) {
    return from == nullptr || is_all_finite(from, piece.elements(), dtype());
  }
  HostResidual* const residual = entry_ == nullptr ? nullptr : entry_->state->on_host();
  return encode_piece(from, piece, dtype(), residual, residual_of(to, piece), out);
}

std::unique_ptr<Work> ScatterStages::start_exchange(std::size_t chunk, Group& group) {
  return std::make_unique<Sequence>(std::vector<Sequence::Start>{
      [this, chunk, &group]() -> Started {
        Exchange& exchange = exchanges_[chunk];
        const std::size_t bytes = pieces_bytes(pieces_of(chunk), dtype());
        exchange.received = make_compressed_buffer((blocks() - 1) * bytes);
        return group.alltoall(
            exchange.sent.get(), exchange.bytes, exchange.received.get(), exchange.bytes);
      },
      [this, chunk]() -> Started {
        LIGHTCC_RETURN_IF_ERROR(add_up(chunk));
        exchanges_[chunk] = {};
        return std::unique_ptr<Work>();
      }});
}

/// The own row of all blocks.
Status ScatterStages::add_up(std::size_t chunk) {
  const std::span<const RowPiece> pieces = pieces_of(chunk);
  const std::size_t bytes = pieces_bytes(pieces, dtype());
  const std::byte* const received = exchanges_[chunk].received.get();
  for (std::size_t i = 0; i + 1 < blocks(); ++i) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool finite,
                             check_pieces(pieces, dtype(), {received + i * bytes, bytes}));
    non_finite_ = non_finite_ || !finite;
  }
  if (non_finite_ || rows_.out == nullptr) {
    return {};
  }
  const double factor = late_factor(job_.reduction, job_.position);
  std::size_t before = 0;
  for (const RowPiece& piece : pieces) {
    std::vector<std::span<const std::byte>> parts;
    for (std::size_t i = 0; i + 1 < blocks(); ++i) {
      parts.emplace_back(received + i * bytes + before, piece_bytes(piece, dtype()));
    }
    const std::byte* const own = sum_for(block(), piece.range.begin);
    std::byte* const out = rows_.out + to_bytes(piece.range.begin);
    if (piece.bits == 0) {
      add_exact(own, parts, piece.elements(), dtype(), factor, out);
    } else {
      dequantize_onto(
          own, parts, piece.elements(), piece.format(dtype()), factor, out, detect_simd_level());
    }
    before += piece_bytes(piece, dtype());
  }
  return {};
}

std::unique_ptr<Work> ScatterStages::start_gather(std::size_t chunk) {
  if (!is_last(chunk)) {
    return nullptr;
  }
  std::vector<Sequence::Start> starts;
  if (grid_ != nullptr) {
    starts.emplace_back([this]() -> Started {
      flags_.assign(job_.position.members, 0);
      flags_[job_.position.member] = non_finite_ ? 1 : 0;
      std::byte* const all = std::as_writable_bytes(std::span(flags_)).data();
      return grid_->levels.intra->allgather(
          all + job_.position.member * sizeof(std::uint64_t),
          all,
          std::vector<std::size_t>(flags_.size(), sizeof(std::uint64_t)));
    });
  }
  starts.emplace_back([this]() -> Started {
    conclude();
    return std::unique_ptr<Work>();
  });
  return std::make_unique<Sequence>(std::move(starts));
}

void ScatterStages::conclude() {
  non_finite_ =
      non_finite_ || std::ranges::any_of(flags_, [](std::uint64_t flag) { return flag != 0; });
  if (non_finite_ && rows_.out != nullptr) {
    fill_with_nan(rows_.out, rows_.count, dtype());
  }
  if (entry_ == nullptr) {
    return;
  }
  ++entry_->steps;
  if (non_finite_) {
    return entry_->state->rollback();
  }
  for (std::size_t to = 0; to < blocks(); ++to) {
    if (to != block()) {
      const RowPiece row{.range = {0, rows_.count}};
      entry_->state->on_host()->measure_range(sum_for(to, 0), residual_of(to, row));
    }
  }
  entry_->state->commit();
  ++entry_->usage.steps;
  entry_->usage.add(entry_->state->energy());
}

}  // namespace

std::unique_ptr<Work> make_compressed_scatter(const CompressedLevels& levels,
                                              const TensorSpan& rows,
                                              std::shared_ptr<TensorResidual> entry,
                                              const CompressedScatterJob& job) {
  std::vector<RowPiece> pieces = cut_row(rows.count, job.spec);
  std::vector<TensorBatch> chunks = chunks_of(pieces);
  if (levels.grid == nullptr) {
    constexpr std::size_t kLead = 2;  // One on the network, one to follow.
    return std::make_unique<GridWork>(
        *levels.flat,
        std::make_unique<ScatterStages>(
            std::move(pieces), std::move(chunks), nullptr, rows, std::move(entry), job, kLead));
  }
  if (!levels.grid->status.ok()) {
    return std::make_unique<FailedWork>(levels.grid->status);
  }
  auto stages = std::make_unique<ScatterStages>(std::move(pieces),
                                                std::move(chunks),
                                                levels.grid,
                                                rows,
                                                std::move(entry),
                                                job,
                                                levels.grid->lead());
  return std::make_unique<GridWork>(levels.grid, std::move(stages));
}

}  // namespace lightcc
