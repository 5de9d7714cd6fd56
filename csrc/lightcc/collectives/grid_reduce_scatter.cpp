// Reduce-scatter: within every block, each member combines what is for the members that have its
// place in any block; these exchange it, and each keeps its own part. There is no third stage.
//
//   bytes sent by each member through the transport   what it combined, less its own part: with
//                                                     equal parts (m-1)/m N/n
#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid_plan.hpp"
#include "lightcc/collectives/grid_stages.hpp"
#include "lightcc/collectives/grid_state.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net_shares.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {
namespace {

class ReduceScatterStages final : public GridStages {
 public:
  ReduceScatterStages(const GridState& state,
                      const std::byte* in,
                      std::byte* out,
                      SharePlan plan,
                      const Reduction& reduction)
      : GridStages(state, GridSchedule(plan.chunks(), state.lead())),
        in_(in),
        out_(out),
        plan_(std::move(plan)),
        reduction_(reduction),
        element_bytes_(element_size(reduction.dtype)),
        staging_(schedule().lead() * state.blocks() * plan_.piece_bytes()) {}

  std::unique_ptr<Work> start_scatter(std::size_t chunk) override;
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) override;
  std::unique_ptr<Work> start_gather(std::size_t) override { return nullptr; }

 private:
  ElementRange piece(std::size_t chunk, std::size_t block, std::size_t member) const {
    return plan_.piece(chunk, state().flat(block, member));
  }
  /// The block's sums of what goes to members of this place, block by block. A chunk's place is
  /// free again when the chunk that is `lead` after it is scattered.
  std::byte* stage(std::size_t chunk) {
    return staging_.data() + chunk % schedule().lead() * state().blocks() * plan_.piece_bytes();
  }

  const std::byte* in_;
  std::byte* out_;
  SharePlan plan_;
  Reduction reduction_;
  std::size_t element_bytes_;
  std::vector<std::byte> staging_;
};

std::unique_ptr<Work> ReduceScatterStages::start_scatter(std::size_t chunk) {
  std::vector<TensorSpan> spans;
  std::vector<std::size_t> counts(state().members(), 0);
  std::byte* result = stage(chunk);
  for (std::size_t member = 0; member < state().members(); ++member) {
    for (std::size_t block = 0; block < state().blocks(); ++block) {
      const ElementRange part = piece(chunk, block, member);
      const bool own = member == state().me();
      spans.push_back({.in = in_ == nullptr ? nullptr : in_ + part.first * element_bytes_,
                       .out = own ? result : nullptr,
                       .count = part.count});
      result += own ? part.count * element_bytes_ : 0;
      counts[member] += part.count;
    }
  }
  return intra().reduce_scatter_bucket(
      std::move(spans), std::move(counts), within_blocks(reduction_));
}

std::unique_ptr<Work> ReduceScatterStages::start_exchange(std::size_t chunk, Group& group) {
  std::vector<std::size_t> counts;
  for (std::size_t block = 0; block < state().blocks(); ++block) {
    counts.push_back(piece(chunk, block, state().me()).count);
  }
  if (std::ranges::all_of(counts, [](std::size_t count) { return count == 0; })) {
    return nullptr;
  }
  const ElementRange own = piece(chunk, state().block(), state().me());
  const std::size_t skip = own.first - piece(0, state().block(), state().me()).first;
  return group.reduce_scatter(stage(chunk),
                              out_ == nullptr ? nullptr : out_ + skip * element_bytes_,
                              std::move(counts),
                              between_blocks(reduction_));
}

}  // namespace

std::unique_ptr<GridStages> make_reduce_scatter_stages(const GridState& state,
                                                       const std::byte* in,
                                                       std::byte* out,
                                                       const std::vector<std::size_t>& counts,
                                                       const Reduction& reduction) {
  const std::size_t width = element_size(reduction.dtype);
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * width;
  const std::size_t piece = grid_piece_bytes(counts, width, state.chunk_bytes(total));
  return std::make_unique<ReduceScatterStages>(
      state, in, out, SharePlan::by_counts(counts, width, piece), reduction);
}

}  // namespace lightcc
