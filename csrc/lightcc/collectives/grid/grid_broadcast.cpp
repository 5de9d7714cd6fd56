// Broadcast: the root's block gets a chunk through its memory, each of its members sends its shares
// to their owners in the other blocks, and these blocks share them.
//
//   bytes that leave the root's host   N for a pair of hosts, and N for each child where there are
//                                      more (NetBroadcast), 1/n of it by each member
#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/grid/grid_plan.hpp"
#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {
namespace {

class BroadcastStages final : public GridStages {
 public:
  BroadcastStages(const GridState& state, std::byte* data, const SharePlan& plan, std::size_t root)
      : GridStages(state, ChunkSchedule(plan.chunks(), state.lead())), data_(data), plan_(plan) {
    std::tie(root_block_, root_member_) = state.shape.position_of(root);
  }

  std::unique_ptr<Work> start_scatter(std::size_t chunk) override {
    if (!is_roots_block()) {
      return nullptr;
    }
    const std::size_t first = plan_.piece(chunk, 0).first;
    const ElementRange last = plan_.piece(chunk, state().shape.width - 1);
    return intra().broadcast(
        data_ + first, last.first + last.count - first, static_cast<int>(root_member_));
  }
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) override {
    return state().on_columns(group, [&](std::size_t index, Group& column) {
      const ElementRange own = plan_.piece(chunk, state().first_share() + index);
      return own.count == 0
                 ? nullptr
                 : column.broadcast(data_ + own.first, own.count, static_cast<int>(root_block_));
    });
  }
  std::unique_ptr<Work> start_gather(std::size_t chunk) override {
    if (is_roots_block()) {
      return nullptr;
    }
    const std::size_t first = plan_.piece(chunk, state().first_share()).first;
    std::vector<std::size_t> bytes(state().members(), 0);
    for (std::size_t share = 0; share < state().shape.width; ++share) {
      bytes[state().shape.owner(state().block(), share)] += plan_.piece(chunk, share).count;
    }
    return intra().allgather(data_ + first, data_ + plan_.piece(chunk, 0).first, std::move(bytes));
  }

 private:
  bool is_roots_block() const { return state().block() == root_block_; }

  std::byte* data_;
  SharePlan plan_;
  std::size_t root_block_ = 0;
  std::size_t root_member_ = 0;
};

}  // namespace

std::unique_ptr<GridStages> make_broadcast_stages(const GridState& state,
                                                  std::byte* data,
                                                  std::size_t bytes,
                                                  std::size_t root) {
  return std::make_unique<BroadcastStages>(
      state, data, grid_plan(bytes, 1, state.shape.width, state.chunk_bytes(bytes)), root);
}

}  // namespace lightcc
