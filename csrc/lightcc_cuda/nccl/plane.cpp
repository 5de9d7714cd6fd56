#include "lightcc_cuda/nccl/plane.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/log.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/engine/grid_choice.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/plane.hpp"
#include "lightcc/engine/staged/staged_exchange.hpp"
#include "lightcc/engine/staged/staged_shards.hpp"

#include "lightcc_cuda/driver/gpus.hpp"
#include "lightcc_cuda/nccl/agreement.hpp"
#include "lightcc_cuda/nccl/comms.hpp"
#include "lightcc_cuda/nccl/group.hpp"

namespace lightcc::cuda {
namespace {

class NcclPlane final : public Plane {
 public:
  NcclPlane(const PlaneSite& site,
            std::unique_ptr<NcclComms> comms,
            std::shared_ptr<Staging> staging,
            int device)
      : world_(site.world),
        host_(site.host),
        lanes_(static_cast<std::size_t>(site.knobs.num_lanes)),
        two_level_(site.knobs.two_level == true),
        two_level_max_bytes_(static_cast<std::uint64_t>(site.knobs.two_level_max_bytes)),
        chunk_bytes_(static_cast<std::size_t>(site.knobs.two_level_chunk_bytes)),
        comms_(std::move(comms)),
        staging_(std::move(staging)),
        device_(device) {}

  MemoryKind memory_kind() const override { return MemoryKind::kCuda; }
  bool runs(const Signature& signature) const override { return is_for_nccl(signature); }
  bool begin_behind(const std::vector<std::shared_ptr<ReadyEvent>>& inputs) override {
    return comms_->begin_behind(inputs);
  }
  const char* what_makes_groups() const override { return "NCCL's ncclCommSplit"; }

  std::string why_unsupported(const Operation& operation) const override {
    if (operation.input.memory.device == device_) {
      return {};
    }
    return "Mismatched GPUs: rank " + std::to_string(world_.topology.rank) +
           " brought the tensor '" + operation.request.signature.name +
           "' on cuda:" + std::to_string(operation.input.memory.device) +
           ", but its GPU for NCCL is cuda:" + std::to_string(device_) +
           ": the only one that it has, or the one whose number is its local rank. "
           "LIGHT_GPU_OPERATIONS=host takes tensors of any GPU.";
  }

  Status add_process_set(std::uint32_t id, const std::vector<std::int32_t>& ranks) override {
    if (sets_.contains(id)) {  // The global one, which make_plane() has added.
      return {};
    }
    const auto position = std::ranges::find(ranks, world_.topology.rank);
    const bool is_member = position != ranks.end();
    const std::optional<Grid> grid = two_level_ ? host_.grid_of(ranks) : std::nullopt;
    Set set{.ranks = ranks,
            .rank = static_cast<int>(position - ranks.begin()),
            .position = {},
            .lanes = {},
            .groups = {}};
    if (grid.has_value() && is_member) {
      set.position = grid_position(*grid, world_.topology.rank);
    }
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      LaneComms& comms = set.lanes.emplace_back();
      comms.flat = comms_->split(is_member ? set.rank : -1);
      if (grid.has_value()) {
        comms.block = set.position.has_value()
                          ? comms_->split(static_cast<int>(set.position->member),
                                          static_cast<int>(set.position->block))
                          : comms_->split(-1);
      }
    }
    if (is_member) {
      sets_[id] = std::move(set);
    }
    return {};
  }

  void remove_process_set(std::uint32_t id) override {
    const auto found = sets_.find(id);
    if (found != sets_.end()) {
      const std::vector<LaneComms> lanes = std::move(found->second.lanes);
      sets_.erase(found);
      for (const LaneComms& comms : lanes) {
        for (const auto& comm : comms.all()) {
          comms_->free(comm);
        }
      }
    }
  }

  Result<bool> make_groups() override {
    bool moved = false;
    for (auto& [id, set] : sets_) {
      if (!set.groups.has_value()) {
        LIGHTCC_ASSIGN_OR_RETURN(const bool made, try_finish(id, set));
        moved = moved || made;
      }
    }
    return moved;
  }

  PlaneLanes* lanes(std::uint32_t id) override {
    const auto found = sets_.find(id);
    return found == sets_.end() || !found->second.groups.has_value() ? nullptr
                                                                     : &*found->second.groups;
  }
  PlaneFacts facts(std::uint32_t id) const override {
    PlaneFacts facts{.flat_name = "NCCL", .has_queue = true};
    if (sets_.at(id).position.has_value()) {
      facts.two_level_max_bytes = two_level_max_bytes_;
    }
    return facts;
  }

  Result<std::shared_ptr<OutputBuffer>> allocate(std::size_t bytes, std::int32_t device) override {
    return staging_->allocate(bytes, device);
  }
  void copy(std::byte* out, const std::byte* in, std::size_t bytes) override {
    comms_->copy_before_next(out, in, bytes);
  }

  // What runs() refuses is not started here.
  Result<std::unique_ptr<Work>> start_adasum(Group& /*group*/,
                                             const TensorSpan& /*tensor*/,
                                             const Reduction& /*reduction*/) override {
    return make_error(ErrorCode::kInternal, "NCCL has no Adasum");
  }

 private:
  struct LaneComms {
    std::shared_ptr<NcclComm> flat;
    std::shared_ptr<NcclComm> block;  // Null: the set has no levels.

    std::vector<std::shared_ptr<NcclComm>> all() const {
      std::vector<std::shared_ptr<NcclComm>> made{flat, block};
      std::erase(made, nullptr);
      return made;
    }
  };
  /// A set that this rank is a member of.
  struct Set {
    std::vector<std::int32_t> ranks;
    int rank = 0;                          // Its place among them.
    std::optional<GridPosition> position;  // Where it has two levels.
    std::vector<LaneComms> lanes;
    std::optional<PlaneLanes> groups;  // Absent while being made.
  };

  static Result<bool> are_made(const Set& set) {
    for (const LaneComms& comms : set.lanes) {
      for (const auto& comm : comms.all()) {
        LIGHTCC_ASSIGN_OR_RETURN(const bool made, comm->is_made());
        if (!made) {
          return false;
        }
      }
    }
    return true;
  }

  Result<bool> try_finish(std::uint32_t id, Set& set) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool made, are_made(set));
    PlaneLanes* const host = host_.lanes(id);
    if (!made || host == nullptr) {
      return false;
    }
    PlaneLanes& groups = set.groups.emplace();
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const LaneComms& comms = set.lanes[lane];
      std::unique_ptr<Group> group =
          make_nccl_group(*comms_, comms.flat, set.rank, static_cast<int>(set.ranks.size()));
      if (!set.position.has_value()) {
        groups.emplace_back().group = std::move(group);
        continue;
      }
      const std::shared_ptr<GridState>& grid = (*host)[lane].grid;
      group = on_two_levels(std::move(group), *set.position, comms.block, grid);
      groups.push_back(
          {std::move(group),
           grid,
           make_staged_shards(grid, block_group(*set.position, comms.block), *staging_, device_),
           make_device_shards(grid, block_group(*set.position, comms.block))});
    }
    return true;
  }

  std::unique_ptr<Group> block_group(const GridPosition& position,
                                     const std::shared_ptr<NcclComm>& comm) const {
    return make_nccl_group(
        *comms_, comm, static_cast<int>(position.member), static_cast<int>(position.members));
  }

  /// NCCL within a block. Between blocks shards go by way of the host's groups of the same lane.
  std::unique_ptr<Group> on_two_levels(std::unique_ptr<Group> flat,
                                       const GridPosition& position,
                                       const std::shared_ptr<NcclComm>& block,
                                       const std::shared_ptr<GridState>& host) {
    const auto allocate = [staging = staging_, device = device_](std::size_t bytes) {
      const auto made = staging->allocate(bytes, device);
      return made.ok() ? std::shared_ptr<std::byte>(*made, (*made)->data()) : nullptr;
    };
    GridGroupOptions options{.chunk_bytes = chunk_bytes_,
                             .max_bytes = two_level_max_bytes_,
                             .is_host_memory = false,
                             .allocate = allocate};
    GridLevels levels;
    levels.intra = block_group(position, block);
    levels.inter = make_staged_exchanges(host, *staging_, device_);
    return make_grid_group(std::move(flat), make_grid_state(std::move(levels), std::move(options)));
  }

  const Membership& world_;
  Plane& host_;
  std::size_t lanes_;
  bool two_level_;
  std::uint64_t two_level_max_bytes_;
  std::size_t chunk_bytes_;           // 0: by the size of the bucket.
  std::unique_ptr<NcclComms> comms_;  // It outlives the communicators of sets.
  std::shared_ptr<Staging> staging_;
  int device_;
  std::map<std::uint32_t, Set> sets_;
};

/// The first NCCL whose threads make no context on GPU 0 for ranks that use another GPU: 2.24.3.
constexpr int kOldestNcclOnItsGpu = 22403;

/// What this rank has to say of itself; `library` is set where it has an NCCL.
Result<NcclCard> own_card(const PlaneSite& site,
                          const GpuFinder& find,
                          std::optional<NcclLibrary>& library) {
  NcclCard card;
  const auto opened = NcclLibrary::open(site.knobs.nccl_library);
  if (!opened.ok()) {
    card.objection = opened.status().message();
    return card;
  }
  const auto gpus = find();
  if (!gpus.ok()) {
    card.objection = gpus.status().message();
    return card;
  }
  const Topology& topology = site.world.topology;
  const auto index =
      gpus->list.size() == 1 ? std::size_t{0} : static_cast<std::size_t>(topology.local_rank);
  if (index >= gpus->list.size()) {
    card.objection = "there are " + std::to_string(gpus->list.size()) + " GPUs for local rank " +
                     std::to_string(topology.local_rank);
    return card;
  }
  card.objection = gpus->list[index].objection;  // Its kernels pack what NCCL carries.
  if (!card.objection.empty()) {
    return card;
  }
  library = *opened;
  card.version = opened->version();
  card.device = static_cast<std::int32_t>(index);
  card.pci_bus_id = gpus->list[index].pci_bus_id;
  card.uuid = gpus->list[index].uuid;
  card.host_id = site.knobs.nccl_host_id;
  if (topology.rank == 0) {
    if (card.version < kOldestNcclOnItsGpu && gpus->list.size() > 1 && topology.local_size > 1) {
      LIGHTCC_LOG(
          LogLevel::kWarning,
          "NCCL %s takes about 0.5 GB of GPU 0 for each rank of a host that sees it; show each "
          "rank its own GPU alone (CUDA_VISIBLE_DEVICES), or use NCCL 2.24.3 or newer",
          nccl_version_text(card.version).c_str());
    }
    LIGHTCC_RETURN_IF_ERROR(opened->check(opened->call().unique_id(&card.id), "ncclGetUniqueId"));
  }
  return card;
}

/// Whether NCCL begins operations of several communicators in order. Ranks need not agree on it:
/// where one runs them one after another, it keeps the order as well.
bool begins_in_order(const Knobs& knobs, int version) {
  const std::string& asked = knobs.nccl_launch_order;
  return version >= kOldestNcclThatOrders && !asked.empty() && asked != "0";
}

/// How much later than this one another rank may begin to connect.
constexpr Duration kLateness = std::chrono::seconds(10);

/// No plane; rank 0 says why.
std::unique_ptr<Plane> no_plane(const PlaneSite& site, const std::string& why) {
  if (site.world.topology.rank == 0) {
    LIGHTCC_LOG(LogLevel::kWarning,
                "tensors of GPUs travel by way of host memory, and not by NCCL: %s",
                why.c_str());
  }
  return nullptr;
}

Result<std::unique_ptr<Plane>> make_plane(const PlaneSite& site,
                                          const std::shared_ptr<Staging>& staging,
                                          const GpuFinder& find) {
  const bool is_asked_for = site.knobs.gpu_operations == "nccl";
  if (!is_asked_for && !(site.knobs.gpu_operations == "auto" && site.world.has_gpus)) {
    return std::unique_ptr<Plane>();
  }
  std::optional<NcclLibrary> library;
  Result<NcclCard> own = own_card(site, find, library);
  if (!own.ok()) {
    if (is_asked_for) {
      return own.status();
    }
    const std::string why = own.status().message();
    own = NcclCard();
    own->objection = why;
  }
  LIGHTCC_ASSIGN_OR_RETURN(const std::vector<Bytes> said, site.exchange("nccl", encode_card(*own)));
  std::vector<NcclCard> cards;
  for (const Bytes& one : said) {
    LIGHTCC_ASSIGN_OR_RETURN(NcclCard card, decode_card(one, static_cast<int>(cards.size())));
    cards.push_back(std::move(card));
  }
  const Result<std::string> agreed = why_no_nccl(cards, site.world.host_of);
  if (!agreed.ok() && is_asked_for) {
    return agreed.status();
  }
  const std::string objection = agreed.ok() ? *agreed : agreed.status().message();
  const Topology& topology = site.world.topology;
  if (!objection.empty() || !library.has_value()) {
    return no_plane(site, objection);
  }
  // Its threads hold the GPU's context from here on. NCCL's operations wait for other ranks.
  staging->prepare(own->device);
  LIGHTCC_ASSIGN_OR_RETURN(
      std::unique_ptr<NcclComms> comms,
      NcclComms::make({.library = *library,
                       .bell = site.bell,
                       .id = cards.front().id,
                       .rank = topology.rank,
                       .size = topology.size,
                       .device = own->device,
                       .start_patience = kConnectPatience,
                       .operation_patience = seconds(site.knobs.nccl_timeout_s),
                       .begins_in_order = begins_in_order(site.knobs, own->version)}));
  NcclComms& made = *comms;
  auto plane = std::make_unique<NcclPlane>(site, std::move(comms), staging, own->device);
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(topology.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  LIGHTCC_RETURN_IF_ERROR(plane->add_process_set(kGlobalProcessSet, ranks));
  if (!is_asked_for) {
    const auto opened = [&](Duration patience) { return made.opened(patience); };
    LIGHTCC_ASSIGN_OR_RETURN(const std::string failure,
                             site.agree("nccl-opened", opened, kConnectPatience + kLateness));
    if (!failure.empty()) {
      made.abort();
      return no_plane(site, failure);
    }
  }
  if (topology.rank == 0) {
    if (!is_asked_for) {
      LIGHTCC_LOG(LogLevel::kWarning,
                  "NCCL carries tensors of GPUs, which has not yet run on hardware; "
                  "LIGHT_GPU_OPERATIONS=host goes by way of host memory, and nccl does not say "
                  "this");
    }
    LIGHTCC_LOG(LogLevel::kInfo,
                "NCCL %s carries tensors of GPUs: %s",
                nccl_version_text(own->version).c_str(),
                library->path().c_str());
  }
  return std::unique_ptr<Plane>(std::move(plane));
}

}  // namespace

PlaneMaker make_nccl_plane(std::shared_ptr<Staging> staging, GpuFinder find) {
  return [staging = std::move(staging), find = std::move(find)](const PlaneSite& site) {
    return make_plane(site, staging, find);
  };
}

}  // namespace lightcc::cuda
