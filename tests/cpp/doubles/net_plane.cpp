#include "doubles/net_plane.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lightcc/collectives/adasum_work.hpp"
#include "lightcc/collectives/net/net_group.hpp"
#include "lightcc/compression/topk_host_kernels.hpp"
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

/// Does something when it has been asked a few times.
class LateWork final : public Work {
 public:
  explicit LateWork(std::function<Status()> action) : action_(std::move(action)) {}

  Result<Progress> advance() override {
    if (--turns_left_ > 0) {
      return Progress::kMoved;
    }
    LIGHTCC_RETURN_IF_ERROR(action_());
    return Progress::kDone;
  }

 private:
  std::function<Status()> action_;
  int turns_left_ = 3;
};

Result<std::unique_ptr<Work>> later(std::function<Status()> action) {
  return std::unique_ptr<Work>(std::make_unique<LateWork>(std::move(action)));
}

class LateShardState final : public TopkShardState {
 public:
  LateShardState(std::unique_ptr<TopkShardState> state, NetPlaneUse& use)
      : state_(std::move(state)), use_(use) {}

  Result<std::unique_ptr<Work>> compress(const std::byte* shard,
                                         const TopkRequest& request,
                                         std::span<std::byte> list,
                                         TopkOutcome& outcome) override {
    ++use_.compressions;
    return later(
        [=, this, &outcome] { return state_->compress(shard, request, list, outcome).status(); });
  }
  Result<std::unique_ptr<Work>> flush(const std::byte* shard,
                                      std::byte* out,
                                      double momentum) override {
    ++use_.compressions;
    return later([=, this] { return state_->flush(shard, out, momentum).status(); });
  }
  Result<std::unique_ptr<Work>> quantize(const std::byte* shard,
                                         std::span<const ShardRange> parts,
                                         std::optional<std::size_t> own,
                                         Compressor compressor,
                                         std::span<std::byte> out,
                                         bool& non_finite) override {
    ++use_.compressions;
    const std::vector<ShardRange> kept(parts.begin(), parts.end());
    return later([=, this, &non_finite] {
      return state_->quantize(shard, kept, own, compressor, out, non_finite).status();
    });
  }
  Result<std::unique_ptr<Work>> quantize_sum(std::span<const std::span<const std::byte>> parts,
                                             const ShardRange& range,
                                             Compressor compressor,
                                             std::span<std::byte> out,
                                             bool& non_finite) override {
    return later([=, this, &non_finite] {
      return state_->quantize_sum(parts, range, compressor, out, non_finite).status();
    });
  }
  DataType dtype() const override { return state_->dtype(); }
  std::size_t numel() const override { return state_->numel(); }
  void commit() override { state_->commit(); }
  void rollback() override { state_->rollback(); }
  bool is_pending() const override { return state_->is_pending(); }
  Status scale(double factor) override { return state_->scale(factor); }
  Status save(Bytes& out) const override { return state_->save(out); }

 private:
  std::unique_ptr<TopkShardState> state_;
  NetPlaneUse& use_;
};

class LateKernels final : public TopkKernels {
 public:
  LateKernels(SimdLevel simd, NetPlaneUse& use) : host_(simd), use_(use) {}

  Result<std::unique_ptr<TopkShardState>> make_state(DataType dtype, std::size_t numel) override {
    return late(host_.make_state(dtype, numel));
  }
  Result<std::unique_ptr<TopkShardState>> load_state(std::span<const std::byte> saved) override {
    return late(host_.load_state(saved));
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override { return host_.allocate(bytes); }
  Result<std::unique_ptr<Work>> merge(std::span<const TopkListView> lists,
                                      std::byte* out,
                                      std::size_t elements,
                                      DataType dtype,
                                      double postscale) override {
    const std::vector<TopkListView> kept(lists.begin(), lists.end());
    return later([=, this] { return host_.merge(kept, out, elements, dtype, postscale).status(); });
  }
  Status dequantize(std::span<const std::span<const std::byte>> parts,
                    std::size_t elements,
                    const QuantizedFormat& format,
                    double factor,
                    std::byte* out) override {
    return host_.dequantize(parts, elements, format, factor, out);
  }
  Result<std::unique_ptr<Work>> check_finite(const std::byte* data,
                                             std::size_t elements,
                                             DataType dtype,
                                             bool& non_finite) override {
    return later([=, this, &non_finite] {
      return host_.check_finite(data, elements, dtype, non_finite).status();
    });
  }

 private:
  Result<std::unique_ptr<TopkShardState>> late(Result<std::unique_ptr<TopkShardState>> state) {
    LIGHTCC_RETURN_IF_ERROR(state.status());
    return std::unique_ptr<TopkShardState>(
        std::make_unique<LateShardState>(std::move(*state), use_));
  }

  HostTopkKernels host_;
  NetPlaneUse& use_;
};

class NetPlane final : public Plane {
 public:
  NetPlane(const PlaneSite& site, std::shared_ptr<NetPlaneUse> use)
      : world_(site.world),
        lanes_(static_cast<std::uint32_t>(site.knobs.num_lanes)),
        intra_size_(site.knobs.intra_size),
        simd_(site.simd),
        use_(use != nullptr ? std::move(use) : std::make_shared<NetPlaneUse>()),
        kernels_(site.simd, *use_) {}

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
  TopkKernels& topk_kernels() override { return kernels_; }

 private:
  PlaneLanes make(std::uint32_t id, const Ranks& ranks) const {
    const auto grid = choose_grid(ranks, world_.host_of, true, intra_size_).grid;
    PlaneLanes groups;
    for (std::uint32_t lane = 0; lane < lanes_; ++lane) {
      std::unique_ptr<Group> group = net(id, kFlatLane + lane, ranks);
      std::shared_ptr<GridState> state;
      if (grid.has_value()) {
        state = make_grid_state(levels_of(id, lane, *grid), {.order = order_of(*grid, ranks)});
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

  static std::vector<std::size_t> order_of(const Grid& grid, const Ranks& ranks) {
    std::vector<std::size_t> order;
    for (const Ranks& block : grid.blocks) {
      for (const std::int32_t rank : block) {
        order.push_back(index_in(ranks, rank));
      }
    }
    return order;
  }

  std::unique_ptr<Group> net(std::uint32_t id, std::uint32_t lane, const Ranks& ranks) const {
    std::vector<NetMember> members;
    for (const std::int32_t rank : ranks) {
      members.push_back({static_cast<std::uint32_t>(rank),
                         world_.transport_handles[static_cast<std::size_t>(rank)]});
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
  LateKernels kernels_;
  std::map<std::uint32_t, PlaneLanes> sets_;
};

}  // namespace

PlaneMaker net_plane(std::shared_ptr<NetPlaneUse> use) {
  return [use = std::move(use)](const PlaneSite& site) {
    return Result<std::unique_ptr<Plane>>(std::make_unique<NetPlane>(site, use));
  };
}

}  // namespace lightcc::testing
