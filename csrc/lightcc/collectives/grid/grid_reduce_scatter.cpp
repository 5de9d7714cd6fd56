// Reduce-scatter: within every block, each member combines what is for the members that have its
// place in any block; these exchange it, and each keeps its own part. There is no third stage.
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
                      const std::byte* in,
                      std::byte* out,
                      const std::vector<std::size_t>& counts,
                      const Reduction& reduction)
      : GridPartStages(state, counts, element_size(reduction.dtype)),
        in_(in),
        out_(out),
        reduction_(reduction),
        element_bytes_(element_size(reduction.dtype)) {}

  std::unique_ptr<Work> start_scatter(std::size_t chunk) override;
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) override;
  std::unique_ptr<Work> start_gather(std::size_t) override { return nullptr; }

 private:
  const std::byte* in_;
  std::byte* out_;
  Reduction reduction_;
  std::size_t element_bytes_;
};

std::unique_ptr<Work> ReduceScatterStages::start_scatter(std::size_t chunk) {
  std::vector<TensorSpan> spans;
  std::vector<std::size_t> counts(state().members(), 0);
  std::byte* result = stage(chunk);
  for (std::size_t member = 0; member < state().members(); ++member) {
    const bool own = member == state().me();
    for (std::size_t block = 0; block < state().blocks(); ++block) {
      const ElementRange part = piece(chunk, block, member);
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
  std::vector<std::size_t> counts = column(chunk);
  if (counts.empty()) {
    return nullptr;
  }
  std::byte* const out = out_ == nullptr ? nullptr : out_ + own_offset(chunk) * element_bytes_;
  return group.reduce_scatter(stage(chunk), out, std::move(counts), between_blocks(reduction_));
}

}  // namespace

std::unique_ptr<GridStages> make_reduce_scatter_stages(const GridState& state,
                                                       const std::byte* in,
                                                       std::byte* out,
                                                       const std::vector<std::size_t>& counts,
                                                       const Reduction& reduction) {
  return std::make_unique<ReduceScatterStages>(state, in, out, counts, reduction);
}

}  // namespace lightcc
