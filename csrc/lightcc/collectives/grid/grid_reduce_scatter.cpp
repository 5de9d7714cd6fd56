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
                      const std::vector<TensorSpan>& tensors,
                      const std::vector<std::size_t>& counts,
                      const Reduction& reduction)
      : GridPartStages(state,
                       tensors,
                       element_size(reduction.dtype),
                       counts,
                       state.options.min_scattered_bytes,
                       true),
        reduction_(reduction) {}

  std::unique_ptr<Work> start_scatter(std::size_t chunk) override;
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) override;
  std::unique_ptr<Work> start_gather(std::size_t) override { return nullptr; }

 private:
  Reduction reduction_;
};

std::unique_ptr<Work> ReduceScatterStages::start_scatter(std::size_t chunk) {
  std::vector<TensorSpan> spans;
  std::vector<std::size_t> counts(state().members(), 0);
  for (std::size_t share = 0; share < state().shape.width; ++share) {
    for_each_piece(chunk, share, [&](const TensorSpan& piece, std::size_t, std::byte* stage) {
      spans.push_back({.in = piece.in, .out = stage, .count = piece.count});
      counts[owner_of(share)] += piece.count;
    });
  }
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
    for_each_piece(chunk,
                   state().first_share() + index,
                   [&](const TensorSpan& piece, std::size_t block, std::byte* stage) {
                     spans.push_back({.in = stage,
                                      .out = block == state().block() ? piece.out : nullptr,
                                      .count = piece.count});
                   });
    return others.reduce_scatter_bucket(
        std::move(spans), std::move(counts), between_blocks(reduction_));
  });
}

}  // namespace

std::unique_ptr<GridStages> make_reduce_scatter_stages(const GridState& state,
                                                       const std::vector<TensorSpan>& tensors,
                                                       const std::vector<std::size_t>& counts,
                                                       const Reduction& reduction) {
  return std::make_unique<ReduceScatterStages>(state, tensors, counts, reduction);
}

}  // namespace lightcc
