// All-gather: members of the same place in their blocks exchange their own parts, then every block
// shares what its members received. There is no first stage: a part crosses to each block once,
// carried by the member that has it.
//
//   bytes sent by each member through the transport   (m-1) B_r, B_r being its own part; a flat
//                                                     all-gather: (mn-1) B_r
//
// Parts of other blocks do not lie together in the output, so the exchange collects them in a place
// of its own, from which the block shares them, this member included.
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

class AllgatherStages final : public GridStages {
 public:
  AllgatherStages(const GridState& state, const std::byte* in, std::byte* out, SharePlan plan)
      : GridStages(state, GridSchedule(plan.chunks(), state.lead())),
        in_(in),
        out_(out),
        plan_(std::move(plan)),
        staging_(schedule().lead() * state.blocks() * plan_.piece_bytes()) {}

  std::unique_ptr<Work> start_scatter(std::size_t) override { return nullptr; }
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) override;
  std::unique_ptr<Work> start_gather(std::size_t chunk) override;

 private:
  /// In bytes.
  ElementRange piece(std::size_t chunk, std::size_t block, std::size_t member) const {
    return plan_.piece(chunk, state().flat(block, member));
  }
  /// What members of this place have of `chunk`, block by block. A chunk's place is free again when
  /// the gather of the chunk is done.
  std::byte* stage(std::size_t chunk) {
    return staging_.data() + chunk % schedule().lead() * state().blocks() * plan_.piece_bytes();
  }

  const std::byte* in_;
  std::byte* out_;
  SharePlan plan_;
  std::vector<std::byte> staging_;
};

std::unique_ptr<Work> AllgatherStages::start_exchange(std::size_t chunk, Group& group) {
  std::vector<std::size_t> bytes;
  for (std::size_t block = 0; block < state().blocks(); ++block) {
    bytes.push_back(piece(chunk, block, state().me()).count);
  }
  if (std::ranges::all_of(bytes, [](std::size_t count) { return count == 0; })) {
    return nullptr;
  }
  const ElementRange own = piece(chunk, state().block(), state().me());
  const std::size_t skip = own.first - piece(0, state().block(), state().me()).first;
  return group.allgather(in_ + skip, stage(chunk), std::move(bytes));
}

std::unique_ptr<Work> AllgatherStages::start_gather(std::size_t chunk) {
  std::vector<TensorSpan> spans;
  std::vector<std::size_t> bytes(state().members(), 0);
  const std::byte* from = stage(chunk);
  for (std::size_t member = 0; member < state().members(); ++member) {
    const bool own = member == state().me();
    for (std::size_t block = 0; block < state().blocks(); ++block) {
      const ElementRange part = piece(chunk, block, member);
      spans.push_back({.in = own ? from : nullptr, .out = out_ + part.first, .count = part.count});
      from += own ? part.count : 0;
      bytes[member] += part.count;
    }
  }
  return intra().allgather_bucket(std::move(spans), std::move(bytes), DataType::kUint8);
}

}  // namespace

std::unique_ptr<GridStages> make_allgather_stages(const GridState& state,
                                                  const std::byte* in,
                                                  std::byte* out,
                                                  const std::vector<std::size_t>& bytes) {
  const std::size_t total = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
  const std::size_t piece = grid_piece_bytes(bytes, 1, state.chunk_bytes(total));
  return std::make_unique<AllgatherStages>(state, in, out, SharePlan::by_counts(bytes, 1, piece));
}

}  // namespace lightcc
