#include "doubles/net_plane.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lightcc/collectives/adasum_work.hpp"
#include "lightcc/collectives/net/net_group.hpp"
#include "lightcc/engine/grid_choice.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/plane.hpp"

namespace lightcc::testing {
namespace {

using Ranks = std::vector<std::int32_t>;

// Above those of the plane of host memory.
constexpr std::uint32_t kFlatLane = 1000;
constexpr std::uint32_t kIntraLane = 2000;
constexpr std::uint32_t kInterLane = 3000;

std::size_t index_in(const Ranks& ranks, std::int32_t rank) {
  return static_cast<std::size_t>(std::ranges::find(ranks, rank) - ranks.begin());
}

class NetPlane final : public Plane {
 public:
  NetPlane(const PlaneSite& site, std::shared_ptr<NetPlaneUse> use)
      : world_(site.world),
        lanes_(static_cast<std::uint32_t>(site.knobs.num_lanes)),
        intra_size_(site.knobs.intra_size),
        simd_(site.simd),
        use_(use != nullptr ? std::move(use) : std::make_shared<NetPlaneUse>()) {}

  MemoryKind memory_kind() const override { return MemoryKind::kCuda; }

  Status add_process_set(std::uint32_t id, const Ranks& ranks) override {
    if (std::ranges::find(ranks, world_.topology.rank) != ranks.end()) {
      sets_[id] = make(id, ranks);
    }
    return {};
  }
  void remove_process_set(std::uint32_t id) override { sets_.erase(id); }
  Result<bool> make_groups() override { return false; }
  PlaneLanes* lanes(std::uint32_t id) override {
    const auto found = sets_.find(id);
    return found == sets_.end() ? nullptr : &found->second;
  }
  PlaneFacts facts(std::uint32_t id) const override {
    PlaneFacts facts{.flat_name = "NET"};
    if (sets_.at(id).front().grid != nullptr) {
      facts.two_level_max_bytes = GridGroupOptions().max_bytes;
    }
    return facts;
  }

  Result<std::shared_ptr<OutputBuffer>> allocate(std::size_t bytes,
                                                 std::int32_t /*device*/) override {
    ++use_->allocations;
    return std::make_shared<OutputBuffer>(bytes);
  }
  void copy(std::byte* out, const std::byte* in, std::size_t bytes) override {
    ++use_->copies;
    std::memcpy(out, in, bytes);
  }
  Result<std::unique_ptr<Work>> start_adasum(Group& group,
                                             const TensorSpan& tensor,
                                             const Reduction& reduction) override {
    ++use_->adasums;
    return make_adasum_work(group, tensor, reduction, simd_);
  }

 private:
  PlaneLanes make(std::uint32_t id, const Ranks& ranks) const {
    const auto grid = choose_grid(ranks, world_.host_of, true, intra_size_).grid;
    PlaneLanes groups;
    for (std::uint32_t lane = 0; lane < lanes_; ++lane) {
      std::unique_ptr<Group> group = net(id, kFlatLane + lane, ranks);
      std::shared_ptr<GridState> state;
      if (grid.has_value()) {
        GridLevels levels = levels_of(id, lane, *grid);
        levels.shape = shape_of(*grid, ranks);
        state = make_grid_state(std::move(levels), {});
        group = make_grid_group(std::move(group), state);
      }
      groups.push_back({std::move(group), state});
    }
    return groups;
  }

  GridLevels levels_of(std::uint32_t id, std::uint32_t lane, const Grid& grid) const {
    const auto own = std::ranges::find_if(grid.blocks, [&](const Ranks& block) {
      return std::ranges::find(block, world_.topology.rank) != block.end();
    });
    Ranks column;
    for (const Ranks& block : grid.blocks) {
      column.push_back(block[index_in(*own, world_.topology.rank)]);
    }
    GridLevels levels;
    levels.intra = net(id, kIntraLane + lane, *own);
    levels.inter.push_back(net(id, kInterLane + lane, column));
    return levels;
  }

  std::unique_ptr<Group> net(std::uint32_t id, std::uint32_t lane, const Ranks& ranks) const {
    std::vector<NetMember> members;
    for (const std::int32_t rank : ranks) {
      members.push_back({static_cast<std::uint32_t>(rank),
                         world_.transport_handles[static_cast<std::size_t>(rank)],
                         world_.switches_of(rank)});
    }
    return make_net_group(*world_.transport,
                          std::move(members),
                          static_cast<int>(index_in(ranks, world_.topology.rank)),
                          id,
                          lane,
                          {.simd = simd_});
  }

  Membership& world_;
  std::uint32_t lanes_;
  std::int64_t intra_size_;
  SimdLevel simd_;
  std::shared_ptr<NetPlaneUse> use_;
  std::map<std::uint32_t, PlaneLanes> sets_;
};

}  // namespace

PlaneMaker net_plane(std::shared_ptr<NetPlaneUse> use) {
  return [use = std::move(use)](const PlaneSite& site) {
    return Result<std::unique_ptr<Plane>>(std::make_unique<NetPlane>(site, use));
  };
}

}  // namespace lightcc::testing
