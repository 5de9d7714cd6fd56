#include "lightcc_cuda/nccl/plane.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/collectives/grid_group.hpp"
#include "lightcc/engine/grid_choice.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/plane.hpp"
#include "lightcc/engine/staged_exchange.hpp"
#include "lightcc/engine/staged_shards.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/gpus.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/nccl/agreement.hpp"
#include "lightcc_cuda/nccl/comms.hpp"
#include "lightcc_cuda/nccl/group.hpp"
#include "lightcc_cuda/nccl/levels.hpp"
#include "lightcc_cuda/nccl/reducer.hpp"
#include "lightcc_cuda/nccl/topk.hpp"

namespace lightcc::cuda {
namespace {

class NcclPlane final : public Plane {
 public:
  NcclPlane(const PlaneSite& site,
            std::unique_ptr<NcclComms> comms,
            std::shared_ptr<Staging> staging,
            int device,
            bool sends_lists,
            bool reduces_across,
            const KernelReductions& kernels)
      : world_(site.world),
        host_(site.host),
        lanes_(static_cast<std::size_t>(site.knobs.num_lanes)),
        two_level_(site.knobs.two_level == true),
        two_level_max_bytes_(static_cast<std::uint64_t>(site.knobs.two_level_max_bytes)),
        chunk_bytes_(static_cast<std::size_t>(site.knobs.two_level_chunk_bytes)),
        comms_(std::move(comms)),
        staging_(std::move(staging)),
        device_(device),
        sends_lists_(sends_lists),
        reduces_across_(reduces_across),
        kernels_(kernels) {}

  MemoryKind memory_kind() const override { return MemoryKind::kCuda; }
  bool runs(const Signature& signature, bool is_compressed) const override {
    if (!is_for_nccl(signature, false, members(signature.process_set), kernels_)) {
      return false;
    }
    if (is_compressed) {
      const CompressionSpec& spec = *signature.compression;
      return has_levels(signature.process_set) ||
             (sends_lists(signature.process_set) && !spec.is_quantized());
    }
    return true;
  }
  bool reduces_by_kernel(const Signature& signature) const override {
    return (signature.op == OpType::kAllreduce || signature.op == OpType::kReducescatter) &&
           reducer_of(signature, members(signature.process_set), kernels_) == Reducer::kKernel;
  }
  bool begins_in_order() const override { return true; }
  bool begin_behind(const std::vector<std::shared_ptr<ReadyEvent>>& inputs) override {
    return comms_->begin_behind(inputs);
  }
  const char* makes_groups_unheard() const override { return "NCCL's ncclCommSplit"; }

  std::string objection_to(const Operation& operation) const override {
    if (operation.input.memory.device == device_) {
      return {};
    }
    return "Mismatched GPUs: rank " + std::to_string(world_.topology.rank) +
           " brought the tensor '" + operation.request.signature.name +
           "' on cuda:" + std::to_string(operation.input.memory.device) +
           ", but its GPU for NCCL is cuda:" + std::to_string(device_) +
           ": the only one that it has, or the one whose number is its local rank.";
  }

  Status add_process_set(std::uint32_t id, const std::vector<std::int32_t>& ranks) override {
    const auto position = std::ranges::find(ranks, world_.topology.rank);
    const bool is_member = position != ranks.end();
    const std::optional<Grid> blocks = host_.grid_of(ranks);
    const std::optional<Grid> grid = two_level_ ? blocks : std::nullopt;
    const bool lists = sends_lists_ && (two_level_ || !blocks.has_value()) &&
                       (grid.has_value() ? grid->blocks.size() : ranks.size()) <= kMaxMergeLists;
    Set set{.ranks = ranks,
            .rank = static_cast<int>(position - ranks.begin()),
            .sends_lists = lists,
            .list_ranks = ranks,
            .position = {},
            .lanes = {},
            .groups = {}};
    if (grid.has_value() && is_member) {
      set.position = grid_position(*grid, world_.topology.rank);
      set.list_ranks.clear();
      for (const std::vector<std::int32_t>& block : grid->blocks) {
        set.list_ranks.push_back(block[set.position->member]);
      }
    }
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      LaneComms& comms = set.lanes.emplace_back();
      comms.flat = comms_->split(is_member ? set.rank : -1);
      if (grid.has_value()) {
        comms.block = split(set.position, &GridPosition::block, &GridPosition::member);
      }
      if (grid.has_value() && (lists || reduces_across_)) {
        comms.across =
            split(set.position, &GridPosition::member, &GridPosition::block, comms.block);
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

  PlaneGroups* groups(std::uint32_t id) override {
    const auto found = sets_.find(id);
    return found == sets_.end() || !found->second.groups.has_value() ? nullptr
                                                                     : &*found->second.groups;
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
  TopkKernels& topk_kernels() override { return host_.topk_kernels(); }

 private:
  struct LaneComms {
    std::shared_ptr<NcclComm> flat;
    std::shared_ptr<NcclComm> block;   // Null: the set has no levels.
    std::shared_ptr<NcclComm> across;  // Of ranks of one position; null: it carries nothing.

    std::vector<std::shared_ptr<NcclComm>> all() const {
      std::vector<std::shared_ptr<NcclComm>> made{flat, block, across};
      std::erase(made, nullptr);
      return made;
    }
  };
  /// A set that this rank is a member of.
  struct Set {
    std::vector<std::int32_t> ranks;
    int rank = 0;                          // Its place among them.
    bool sends_lists = false;              // Of what is compressed.
    std::vector<std::int32_t> list_ranks;  // Whose lists are added up.
    std::optional<GridPosition> position;  // Where it has two levels.
    std::vector<LaneComms> lanes;
    std::optional<PlaneGroups> groups;  // Absent while being made.
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
    PlaneGroups* const host = host_.groups(id);
    if (!made || host == nullptr) {
      return false;
    }
    PlaneGroups& groups = set.groups.emplace();
    groups.flat_algorithm = "NCCL";
    groups.kernel_algorithm = "NCCL_KERNEL";
    groups.ends_unheard = true;
    groups.compresses_in_turn = set.sends_lists && !set.position.has_value();
    if (set.position.has_value()) {
      groups.two_level_max_bytes = two_level_max_bytes_;
      groups.only_allreduces_on_levels = true;
      groups.compresses_apart = true;
      groups.levels_begin_once = reduces_across_;
    }
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const LaneComms& comms = set.lanes[lane];
      std::unique_ptr<Group> group =
          make_nccl_group(*comms_, comms.flat, set.rank, static_cast<int>(set.ranks.size()));
      if (!set.position.has_value()) {
        PlaneGroups::Lane& made_lane = groups.lanes.emplace_back();
        made_lane.group = std::move(group);
        made_lane.device_topk = topk_of(
            set, {.lists = comms.flat, .block = nullptr}, static_cast<std::size_t>(set.rank));
        continue;
      }
      const std::shared_ptr<GridState>& grid = host->lanes[lane].grid;
      group = on_two_levels(std::move(group), *set.position, comms, grid);
      groups.lanes.push_back(
          {std::move(group),
           grid,
           make_staged_shards(grid, block_group(*set.position, comms.block), *staging_, device_),
           make_device_shards(grid, block_group(*set.position, comms.block)),
           topk_of(set, {.lists = comms.across, .block = comms.block}, set.position->block)});
    }
    return true;
  }

  /// Of a set; none where this rank is not one of them.
  std::size_t members(std::uint32_t id) const {
    const auto found = sets_.find(id);
    return found == sets_.end() ? 0 : found->second.ranks.size();
  }

  bool has_levels(std::uint32_t id) const {
    const auto found = sets_.find(id);
    return found != sets_.end() && found->second.position.has_value();
  }

  bool sends_lists(std::uint32_t id) const {
    const auto found = sets_.find(id);
    return found != sets_.end() && found->second.sends_lists;
  }

  /// Null: the set sends no lists. `own`: of its list_ranks.
  std::unique_ptr<DeviceTopk> topk_of(const Set& set, TopkComms comms, std::size_t own) const {
    if (!set.sends_lists) {
      return nullptr;
    }
    // Of make_staging().
    auto& kernels = static_cast<CudaTopkKernels&>(*staging_->topk_kernels(device_));
    return make_nccl_topk(*comms_, std::move(comms), kernels, set.list_ranks, own);
  }

  /// The communicator of the members that have the same `part`. Members have a position.
  std::shared_ptr<NcclComm> split(const std::optional<GridPosition>& position,
                                  std::size_t GridPosition::* part,
                                  std::size_t GridPosition::* key,
                                  const std::shared_ptr<NcclComm>& beside = nullptr) const {
    return position.has_value() ? comms_->split(static_cast<int>((*position).*key),
                                                static_cast<int>((*position).*part),
                                                beside)
                                : comms_->split(-1);
  }

  std::unique_ptr<Group> block_group(const GridPosition& position,
                                     const std::shared_ptr<NcclComm>& comm) const {
    return make_nccl_group(
        *comms_, comm, static_cast<int>(position.member), static_cast<int>(position.members));
  }

  /// NCCL within a block. Between blocks it is NCCL, too, or shards go by way of the host's groups
  /// of the same lane.
  std::unique_ptr<Group> on_two_levels(std::unique_ptr<Group> flat,
                                       const GridPosition& position,
                                       const LaneComms& comms,
                                       const std::shared_ptr<GridState>& host) {
    const auto allocate = [staging = staging_, device = device_](std::size_t bytes) {
      const auto made = staging->allocate(bytes, device);
      return made.ok() ? std::shared_ptr<std::byte>(*made, (*made)->data()) : nullptr;
    };
    GridGroupOptions options{.chunk_bytes = chunk_bytes_,
                             .max_bytes = two_level_max_bytes_,
                             .is_host_memory = false,
                             .allocate = allocate};
    if (reduces_across_) {
      return make_nccl_levels(*comms_,
                              std::move(flat),
                              {.block = comms.block, .across = comms.across},
                              position,
                              std::move(options));
    }
    GridLevels levels;
    levels.intra = block_group(position, comms.block);
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
  bool sends_lists_;
  bool reduces_across_;  // Dense shards, on two levels.
  KernelReductions kernels_;
  std::map<std::uint32_t, Set> sets_;
};

/// Why this rank's GPU cannot send lists of top-k compression; empty: it can, or is not asked to.
std::string own_objection_to_lists(const Knobs& knobs, Staging& staging, int device) {
  if (!knobs.nccl_topk) {
    return {};
  }
  if (!knobs.topk_on_gpu) {
    return "LIGHT_GPU_TOPK=0";
  }
  // A state needs the kernels.
  return staging.topk_kernels(device)->make_state(DataType::kFloat32, 1).status().message();
}

/// Why reduce.cu cannot be launched on this rank's GPU; empty: it can.
std::string own_objection_to_kernels(int device) {
  const auto load = [device]() -> Status {
    LIGHTCC_ASSIGN_OR_RETURN(const Driver driver, Driver::open());
    LIGHTCC_ASSIGN_OR_RETURN(const Context context, Context::retain(driver, device));
    const CurrentContext current(context);
    LIGHTCC_RETURN_IF_ERROR(current.status());
    return KernelTable::load_reductions(driver).status();
  };
  return load().message();
}

/// What this rank has to say of itself; `library` is set where it has an NCCL.
Result<NcclCard> own_card(const PlaneSite& site,
                          Staging& staging,
                          std::optional<NcclLibrary>& library) {
  NcclCard card;
  const auto opened = NcclLibrary::open(site.knobs.nccl_library);
  if (!opened.ok()) {
    card.objection = opened.status().message();
    return card;
  }
  const auto gpus = find_gpus();
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
  library = *opened;
  card.version = opened->version();
  card.device = static_cast<std::int32_t>(index);
  card.pci_bus_id = gpus->list[index].pci_bus_id;
  card.uuid = gpus->list[index].uuid;
  card.host_id = site.knobs.nccl_host_id;
  // Its threads hold the GPU's context from here on. NCCL's operations wait for other ranks.
  staging.prepare(card.device);
  card.objection_to_lists =
      own_objection_to_lists(site.knobs, staging, static_cast<int>(card.device));
  card.objection_to_kernels = own_objection_to_kernels(static_cast<int>(card.device));
  if (topology.rank == 0) {
    LIGHTCC_RETURN_IF_ERROR(
        opened->check(opened->call().unique_id(&card.id), "ncclGetUniqueId", nullptr));
  }
  return card;
}

/// Whether NCCL sends lists of top-k compression. The same on all ranks.
bool sends_lists(const PlaneSite& site, const std::vector<NcclCard>& cards) {
  if (!site.knobs.nccl_topk) {
    return false;
  }
  const std::string objection = objection_to_lists(cards);
  if (!objection.empty() && site.world.topology.rank == 0) {
    site.warn("LIGHT_NCCL_TOPK=1: top-k lists travel by way of the host: " + objection);
  }
  return objection.empty();
}

/// What kernels reduce. The same on all ranks.
KernelReductions kernel_reductions(const PlaneSite& site, const std::vector<NcclCard>& cards) {
  const std::string objection = objection_to_kernels(cards);
  if (!objection.empty() && site.world.topology.rank == 0) {
    site.warn(
        std::string(site.knobs.nccl_rank_order
                        ? "LIGHT_NCCL_RANK_ORDER=1: reductions of floating-point tensors, and "
                          "those that NCCL does not have,"
                        : "HOROVOD_GPU_OPERATIONS=NCCL: reductions that NCCL does not have") +
        " travel by way of host memory: " + objection);
  }
  // As much at a time as is in pinned memory by way of the host.
  constexpr std::size_t kPiecesAtOnce = 4;
  const auto staged = static_cast<std::size_t>(site.knobs.staged_piece_bytes);
  return {.are_loaded = objection.empty(),
          .in_rank_order = site.knobs.nccl_rank_order,
          .piece_bytes =
              staged == 0 ? std::numeric_limits<std::size_t>::max() : kPiecesAtOnce * staged};
}

/// Of operations on several communicators. Ranks need not agree on it: where one runs them one
/// after another, it keeps the order as well.
bool begins_in_order(const Knobs& knobs, int version) {
  const std::string& asked = knobs.nccl_launch_order;
  return version >= kOldestNcclThatOrders && !asked.empty() && asked != "0";
}

Result<std::unique_ptr<Plane>> make_plane(const PlaneSite& site,
                                          const std::shared_ptr<Staging>& staging) {
  if (site.knobs.gpu_operations != "nccl") {
    return std::unique_ptr<Plane>();
  }
  std::optional<NcclLibrary> library;
  LIGHTCC_ASSIGN_OR_RETURN(const NcclCard own, own_card(site, *staging, library));
  LIGHTCC_ASSIGN_OR_RETURN(const std::vector<Bytes> said, site.exchange("nccl", encode_card(own)));
  std::vector<NcclCard> cards;
  for (const Bytes& one : said) {
    LIGHTCC_ASSIGN_OR_RETURN(NcclCard card, decode_card(one, static_cast<int>(cards.size())));
    cards.push_back(std::move(card));
  }
  LIGHTCC_ASSIGN_OR_RETURN(const std::string objection,
                           objection_to_nccl(cards, site.world.host_of));
  const Topology& topology = site.world.topology;
  if (!objection.empty() || !library.has_value()) {
    if (topology.rank == 0) {
      site.warn("HOROVOD_GPU_OPERATIONS=NCCL: tensors of GPUs travel by way of host memory: " +
                objection);
    }
    return std::unique_ptr<Plane>();
  }
  const bool lists = sends_lists(site, cards);
  const bool reduces_across = site.knobs.two_level_inter == "nccl";
  if (reduces_across && site.knobs.two_level != true && topology.rank == 0) {
    site.warn("LIGHT_2D_INTER=nccl: all-reduces by NCCL are flat without LIGHT_2D_ALLREDUCE=1");
  }
  const KernelReductions kernels = kernel_reductions(site, cards);
  LIGHTCC_ASSIGN_OR_RETURN(
      std::unique_ptr<NcclComms> comms,
      NcclComms::make({.library = *library,
                       .warn = site.warn,
                       .id = cards.front().id,
                       .rank = topology.rank,
                       .size = topology.size,
                       .device = own.device,
                       .start_patience = seconds(site.knobs.start_timeout_s),
                       .operation_patience = seconds(site.knobs.nccl_timeout_s),
                       .buffer_bytes = static_cast<std::size_t>(site.knobs.nccl_buffer_bytes),
                       .sends_lists = lists,
                       .kernels = kernels,
                       .begins_in_order = begins_in_order(site.knobs, own.version),
                       .overlaps_levels = reduces_across}));
  return std::unique_ptr<Plane>(std::make_unique<NcclPlane>(
      site, std::move(comms), staging, own.device, lists, reduces_across, kernels));
}

}  // namespace

PlaneMaker make_nccl_plane(std::shared_ptr<Staging> staging) {
  return
      [staging = std::move(staging)](const PlaneSite& site) { return make_plane(site, staging); };
}

}  // namespace lightcc::cuda
