// Reduce-scatter: within every block, each member combines what is for the owners of its shares in
// any block; these exchange it, and each keeps its own part. There is no third stage.
//
//   bytes sent by each member through the transport   what it combined, less its own part: with
//                                                     equal parts (m-1)/m N/n
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/grid/grid_parts.hpp"
#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {
namespace {

class ReduceScatterStages final : public GridPartStages {
 public:
  ReduceScatterStages(const GridState& state,
                      BucketView bucket,
                      const std::vector<std::size_t>& counts,
                      const Reduction& reduction)
      : GridPartStages(state, counts, element_size(reduction.dtype)),
        bucket_(std::move(bucket)),
        reduction_(reduction) {}

  std::unique_ptr<Work> start_scatter(std::size_t chunk) override;
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) override;
  std::unique_ptr<Work> start_gather(std::size_t) override { return nullptr; }

 private:
  BucketView bucket_;
  Reduction reduction_;
};

std::unique_ptr<Work> ReduceScatterStages::start_scatter(std::size_t chunk) {
  std::vector<TensorSpan> spans;
  std::vector<std::size_t> counts(state().members(), 0);
  std::vector<std::byte*> results = stages(chunk);
  for_each_part(chunk, [&](std::size_t share, ElementRange part) {
    const bool own = owner_of(share) == state().me();
    std::byte*& result = results[own ? share - state().first_share() : 0];
    bucket_.for_each_piece(part, [&](const TensorSpan& piece, std::size_t) {
      spans.push_back({.in = piece.in, .out = own ? result : nullptr, .count = piece.count});
      result += own ? piece.count * bucket_.element_bytes() : 0;
    });
    counts[owner_of(share)] += part.count;
  });
  return intra().reduce_scatter_bucket(
      std::move(spans), std::move(counts), within_blocks(reduction_));
}

std::unique_ptr<Work> ReduceScatterStages::start_exchange(std::size_t chunk, Group& group) {
  return state().on_columns(group, [&](std::size_t index, Group& others) -> std::unique_ptr<Work> {
    std::vector<std::size_t> counts = column(chunk, index);
    if (counts.empty()) {
      return nullptr;
    }
    std::vector<TensorSpan> spans;
    const std::byte* from = stage(chunk, index);
    const auto add = [&](std::byte* out, std::size_t count) {
      spans.push_back({.in = from, .out = out, .count = count});
      from += count * bucket_.element_bytes();
    };
    for (std::size_t block = 0; block < counts.size(); ++block) {
      if (block != state().block()) {
        add(nullptr, counts[block]);
        continue;
      }
      bucket_.for_each_piece(
          part(chunk, block, state().first_share() + index),
          [&](const TensorSpan& piece, std::size_t) { add(piece.out, piece.count); });
    }
    return others.reduce_scatter_bucket(
        std::move(spans), std::move(counts), between_blocks(reduction_));
  });
}

}  // namespace

std::unique_ptr<GridStages> make_reduce_scatter_stages(const GridState& state,
                                                       BucketView bucket,
                                                       const std::vector<std::size_t>& counts,
                                                       const Reduction& reduction) {
  return std::make_unique<ReduceScatterStages>(state, std::move(bucket), counts, reduction);
}

}  // namespace lightcc
