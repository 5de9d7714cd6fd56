#include "lightcc/engine/host_plane.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lightcc/base/log.hpp"
#include "lightcc/collectives/adasum_work.hpp"
#include "lightcc/collectives/net/net_group.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kLaneAlignment = 4096;
// Between two blocks, two chunks of a bucket travel at once, each through its own channels. Their
// lane numbers lie above all lanes of flat groups.
constexpr std::uint32_t kExchangesPerLane = 2;
constexpr std::uint32_t kFirstExchangeLane = 256;

std::size_t position_of(const std::vector<int>& ranks, std::int32_t rank) {
  return static_cast<std::size_t>(std::ranges::find(ranks, rank) - ranks.begin());
}

/// The ranks that have this one's position in their blocks.
std::vector<std::int32_t> column_of(const Grid& grid, std::size_t member) {
  std::vector<std::int32_t> column;
  column.reserve(grid.blocks.size());
  for (const auto& block : grid.blocks) {
    column.push_back(block[member]);
  }
  return column;
}

}  // namespace

HostPlane::HostPlane(Membership& world, Knobs knobs, SimdLevel simd)
    : world_(world), knobs_(std::move(knobs)), simd_(simd) {}

bool HostPlane::is_on_this_host(std::int32_t rank) const {
  return position_of(world_.host.ranks, rank) < world_.host.ranks.size();
}

HostPlane::Layout HostPlane::layout_of(const std::vector<std::int32_t>& ranks) const {
  Layout layout;
  layout.shared =
      std::ranges::all_of(ranks, [this](std::int32_t rank) { return is_on_this_host(rank); });
  if (world_.transport != nullptr) {
    // Where dense all-reduces are to run flat, compressed ones still have the levels.
    const auto wanted = knobs_.two_level == false ? std::nullopt : knobs_.two_level;
    layout.grid = choose_grid(ranks, world_.host_of, wanted, knobs_.intra_size).grid;
  }
  for (std::size_t block = 0; layout.grid.has_value() && block < layout.grid->blocks.size();
       ++block) {
    if (is_on_this_host(layout.grid->blocks[block].front())) {
      layout.own_blocks.push_back(block);
    }
  }
  return layout;
}

std::optional<GridPosition> HostPlane::compression_position(
    const std::vector<std::int32_t>& ranks) const {
  const Layout layout = layout_of(ranks);
  if (layout.grid.has_value()) {
    return grid_position(*layout.grid, world_.topology.rank);
  }
  if (layout.shared) {
    return std::nullopt;
  }
  return GridPosition{.blocks = ranks.size(), .block = position_of(ranks, world_.topology.rank)};
}

// Says why a set has no grid although it was asked for: once, on one of its ranks.
void HostPlane::explain_once(const std::vector<std::int32_t>& ranks) {
  if (explained_ || ranks.front() != world_.topology.rank) {
    return;
  }
  const GridChoice choice = choose_grid(ranks, world_.host_of, knobs_.two_level, knobs_.intra_size);
  if (choice.objection.empty()) {
    return;
  }
  explained_ = true;
  LIGHTCC_LOG(knobs_.two_level == true ? LogLevel::kWarning : LogLevel::kInfo,
              "collectives of %zu ranks run flat, not on two levels: %s",
              ranks.size(),
              choice.objection.c_str());
}

ShmGroupOptions HostPlane::shm_options(std::size_t members) const {
  ShmGroupOptions options = default_shm_options(static_cast<int>(members));
  options.simd = simd_;
  return options;
}

std::size_t HostPlane::lane_bytes(std::size_t members) const {
  const std::size_t bytes = shm_group_bytes(static_cast<int>(members), shm_options(members));
  return (bytes + kLaneAlignment - 1) / kLaneAlignment * kLaneAlignment;
}

// On this host; 0: the set needs no shared memory here.
std::size_t HostPlane::segment_bytes(const Layout& layout, std::size_t members) const {
  std::size_t bytes = layout.shared ? lane_bytes(members) : 0;
  if (layout.grid.has_value()) {
    bytes += layout.own_blocks.size() * lane_bytes(layout.grid->block_size());
  }
  return bytes * static_cast<std::size_t>(knobs_.num_lanes);
}

Status HostPlane::add_process_set(std::uint32_t process_set,
                                  const std::vector<std::int32_t>& ranks) {
  explain_once(ranks);
  if (std::ranges::find(ranks, world_.topology.rank) != ranks.end()) {
    Set& set = sets_[process_set];
    set.ranks = ranks;
  }
  const std::size_t bytes = segment_bytes(layout_of(ranks), ranks.size());
  if (!world_.host.is_leader() || bytes == 0) {
    return {};
  }
  LIGHTCC_ASSIGN_OR_RETURN(ShmSegment segment, ShmSegment::create(bytes));
  const auto fd = std::make_shared<const UniqueFd>(segment.give_up_fd());
  for (const std::int32_t rank : ranks) {
    const std::size_t position = position_of(world_.host.ranks, rank);
    if (position != 0 && position != world_.host.ranks.size()) {
      outgoing_.push_back({position, process_set, fd});
    }
  }
  if (const auto own = sets_.find(process_set); own != sets_.end()) {
    own->second.segment = std::move(segment);
  }
  return send_pending().status();
}

Result<bool> HostPlane::send_pending() {
  // Whoever is behind the first with a full queue is not to wait for it.
  const std::size_t before = outgoing_.size();
  Status lost;
  std::erase_if(outgoing_, [&](const Outgoing& next) {
    const Result<bool> sent =
        world_.host.mail.send(next.position, next.process_set, next.fd->get());
    lost = sent.ok() ? lost : sent.status();
    return !sent.ok() || *sent;
  });
  return lost.ok() ? Result<bool>(outgoing_.size() < before) : lost;
}

Result<bool> HostPlane::receive_pending() {
  world_.host.mail.collect();  // Before the loop runs nobody else does.
  LIGHTCC_ASSIGN_OR_RETURN(auto parcels, world_.host.mail.take());
  for (auto& [process_set, fd] : parcels) {
    received_[process_set] = std::move(fd);
  }
  return !parcels.empty();
}

Result<bool> HostPlane::make_groups() {
  // What came before another rank went still makes groups.
  const Result<bool> exchanged = world_.host.is_leader() ? send_pending() : receive_pending();
  bool moved = exchanged.ok() && *exchanged;
  for (auto& [id, set] : sets_) {
    if (!set.lanes.has_value()) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool finished, try_finish(id, set));
      moved = moved || finished;
    }
  }
  return exchanged.ok() ? moved : exchanged;
}

PlaneLanes* HostPlane::lanes(std::uint32_t process_set) {
  const auto found = sets_.find(process_set);
  return found == sets_.end() || !found->second.lanes.has_value() ? nullptr : &*found->second.lanes;
}

PlaneFacts HostPlane::facts(std::uint32_t process_set) const {
  const Layout layout = layout_of(sets_.at(process_set).ranks);
  PlaneFacts facts{.flat_name = layout.shared ? "SHM" : "NET"};
  if (layout.grid.has_value() && knobs_.two_level != false) {
    facts.two_level_max_bytes = static_cast<std::uint64_t>(knobs_.two_level_max_bytes);
  }
  return facts;
}

// True once the set has its groups.
Result<bool> HostPlane::try_finish(std::uint32_t process_set, Set& set) {
  const Layout layout = layout_of(set.ranks);
  const std::size_t bytes = segment_bytes(layout, set.ranks.size());
  if (bytes > 0 && set.segment.memory().empty()) {
    const auto received = received_.find(process_set);
    if (received == received_.end()) {
      return false;
    }
    UniqueFd fd = std::move(received->second);
    received_.erase(received);
    LIGHTCC_ASSIGN_OR_RETURN(set.segment, ShmSegment::map(std::move(fd), bytes));
    (void)set.segment.give_up_fd();
  }
  set.lanes = make_lanes(process_set, set, layout);
  return true;
}

PlaneLanes HostPlane::make_lanes(std::uint32_t process_set,
                                 const Set& set,
                                 const Layout& layout) const {
  const std::vector<std::int32_t>& ranks = set.ranks;
  std::span<std::byte> memory = set.segment.memory();
  PlaneLanes lanes;
  const std::uint64_t max_bytes = facts(process_set).two_level_max_bytes.value_or(0);
  std::optional<GridPosition> position;
  if (layout.grid.has_value()) {
    position = grid_position(*layout.grid, world_.topology.rank);
  }
  const auto take = [&memory](std::size_t bytes) {
    const auto part = memory.first(bytes);
    memory = memory.subspan(bytes);
    return part;
  };
  for (std::uint32_t lane = 0; lane < static_cast<std::uint32_t>(knobs_.num_lanes); ++lane) {
    std::unique_ptr<Group> group = layout.shared ? make_shm(take(lane_bytes(ranks.size())), ranks)
                                                 : make_net(process_set, lane, ranks);
    if (!position) {
      lanes.push_back({std::move(group), nullptr});
      continue;
    }
    // Every rank of the host comes to the same places, and uses that of its block.
    GridLevels levels;
    for (const std::size_t block : layout.own_blocks) {
      const auto of_block = take(lane_bytes(position->members));
      if (block == position->block) {
        levels = make_levels(process_set, lane, *layout.grid, of_block);
        levels.shape = shape_of(*layout.grid, ranks);
      }
    }
    const std::shared_ptr<GridState> grid =
        make_grid_state(std::move(levels),
                        {.chunk_bytes = static_cast<std::size_t>(knobs_.two_level_chunk_bytes),
                         .max_bytes = max_bytes});
    lanes.push_back({make_grid_group(std::move(group), grid), grid});
  }
  return lanes;
}

Result<std::shared_ptr<OutputBuffer>> HostPlane::allocate(std::size_t bytes,
                                                          std::int32_t /*device*/) {
  return std::make_shared<OutputBuffer>(bytes);
}

void HostPlane::copy(std::byte* out, const std::byte* in, std::size_t bytes) {
  std::memcpy(out, in, bytes);
}

Result<std::unique_ptr<Work>> HostPlane::start_adasum(Group& group,
                                                      const TensorSpan& tensor,
                                                      const Reduction& reduction) {
  return make_adasum_work(group, tensor, reduction, simd_);
}

GridLevels HostPlane::make_levels(std::uint32_t process_set,
                                  std::uint32_t lane,
                                  const Grid& grid,
                                  std::span<std::byte> memory) const {
  const GridPosition position = grid_position(grid, world_.topology.rank);
  GridLevels levels;
  levels.intra = make_shm(memory, grid.blocks[position.block]);
  const std::vector<std::int32_t> column = column_of(grid, position.member);
  for (std::uint32_t i = 0; i < kExchangesPerLane; ++i) {
    levels.inter.push_back(
        make_net(process_set, kFirstExchangeLane + lane * kExchangesPerLane + i, column));
  }
  return levels;
}

std::unique_ptr<Group> HostPlane::make_shm(std::span<std::byte> memory,
                                           const std::vector<std::int32_t>& ranks) const {
  std::vector<Doorbell> doorbells;
  int own = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t position = position_of(world_.host.ranks, ranks[i]);
    const bool is_own = ranks[i] == world_.topology.rank;
    own = is_own ? static_cast<int>(i) : own;
    doorbells.push_back(is_own ? Doorbell() : world_.host.doorbell(position));
  }
  return make_shm_group(memory, own, std::move(doorbells), shm_options(ranks.size()));
}

std::unique_ptr<Group> HostPlane::make_net(std::uint32_t process_set,
                                           std::uint32_t lane,
                                           const std::vector<std::int32_t>& ranks) const {
  std::vector<NetMember> members;
  int own = 0;
  for (const std::int32_t rank : ranks) {
    own = rank == world_.topology.rank ? static_cast<int>(members.size()) : own;
    members.push_back({static_cast<std::uint32_t>(rank),
                       world_.transport_handles[static_cast<std::size_t>(rank)],
                       world_.switches_of(rank)});
  }
  NetGroupOptions options;
  options.simd = simd_;
  return make_net_group(*world_.transport, std::move(members), own, process_set, lane, options);
}

}  // namespace lightcc
