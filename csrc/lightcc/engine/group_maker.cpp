#include "lightcc/engine/group_maker.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lightcc/collectives/net_group.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kLaneAlignment = 4096;

std::size_t place_of(const std::vector<int>& ranks, std::int32_t rank) {
  return static_cast<std::size_t>(std::ranges::find(ranks, rank) - ranks.begin());
}

}  // namespace

GroupMaker::GroupMaker(Membership& world, Knobs knobs, SimdLevel simd)
    : world_(world), knobs_(std::move(knobs)), simd_(simd) {}

bool GroupMaker::shares_this_host(const std::vector<std::int32_t>& ranks) const {
  return std::ranges::all_of(ranks, [&](std::int32_t rank) {
    return place_of(world_.host.ranks, rank) < world_.host.ranks.size();
  });
}

ShmGroupOptions GroupMaker::shm_options(std::size_t members) const {
  ShmGroupOptions options = default_shm_options(static_cast<int>(members));
  if (knobs_.shm_chunk_bytes > 0) {
    options.chunk_bytes = static_cast<std::size_t>(knobs_.shm_chunk_bytes);
  }
  if (knobs_.shm_depth > 0) {
    options.depth = std::max(2, static_cast<int>(knobs_.shm_depth));
  }
  options.simd = simd_;
  return options;
}

std::size_t GroupMaker::lane_bytes(std::size_t members) const {
  const std::size_t bytes = shm_group_bytes(static_cast<int>(members), shm_options(members));
  return (bytes + kLaneAlignment - 1) / kLaneAlignment * kLaneAlignment;
}

Status GroupMaker::begin(std::uint32_t process_set, const std::vector<std::int32_t>& ranks) {
  if (!world_.host.is_leader() || !shares_this_host(ranks)) {
    return {};
  }
  const auto lanes = static_cast<std::size_t>(knobs_.num_lanes);
  LIGHTCC_ASSIGN_OR_RETURN(ShmSegment segment,
                           ShmSegment::create(lanes * lane_bytes(ranks.size())));
  for (const std::int32_t rank : ranks) {
    const std::size_t place = place_of(world_.host.ranks, rank);
    if (place == 0) {
      continue;
    }
    UniqueFd fd(::fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0));
    if (!fd.valid()) {
      return make_system_error(ErrorCode::kSystem, errno, "cannot duplicate a descriptor");
    }
    outgoing_.push_back({place, process_set, std::move(fd)});
  }
  if (ranks.front() == world_.topology.rank) {
    made_[process_set] = std::move(segment);
  }
  return exchange_segments().status();
}

Result<bool> GroupMaker::exchange_segments() {
  if (world_.host.is_leader()) {
    return outgoing_.empty() ? Result<bool>(false) : send_pending();
  }
  return receive_pending();
}

Result<bool> GroupMaker::send_pending() {
  std::size_t sent = 0;
  for (; sent < outgoing_.size(); ++sent) {
    const Outgoing& next = outgoing_[sent];
    std::array<std::byte, sizeof(next.process_set)> payload{};
    std::memcpy(payload.data(), &next.process_set, sizeof(next.process_set));
    const std::array<int, 1> fds = {next.fd.get()};
    LIGHTCC_ASSIGN_OR_RETURN(const bool went,
                             send_fds(world_.host.sockets[next.place].get(), payload, fds));
    if (!went) {
      break;
    }
  }
  outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<std::ptrdiff_t>(sent));
  return sent > 0;
}

Result<bool> GroupMaker::receive_pending() {
  bool moved = false;
  while (true) {
    std::uint32_t process_set = 0;
    std::array<std::byte, sizeof(process_set)> payload{};
    LIGHTCC_ASSIGN_OR_RETURN(std::optional<ReceivedFds> message,
                             recv_fds(world_.host.sockets[0].get(), payload, 1));
    if (!message.has_value()) {
      return moved;
    }
    if (message->payload_bytes != payload.size() || message->fds.size() != 1) {
      return Status(ErrorCode::kPeerFailed,
                    "unexpected descriptors from this host's leader",
                    world_.host.ranks[0]);
    }
    std::memcpy(&process_set, payload.data(), sizeof(process_set));
    received_[process_set] = std::move(message->fds[0]);
    moved = true;
  }
}

Result<std::optional<LaneGroups>> GroupMaker::try_finish(std::uint32_t process_set,
                                                         const std::vector<std::int32_t>& ranks) {
  if (!shares_this_host(ranks)) {
    return std::optional<LaneGroups>(make_net_lanes(process_set, ranks));
  }
  if (const auto made = made_.find(process_set); made != made_.end()) {
    ShmSegment segment = std::move(made->second);
    made_.erase(made);
    return std::optional<LaneGroups>(make_shm_lanes(std::move(segment), ranks));
  }
  const auto received = received_.find(process_set);
  if (received == received_.end()) {
    return std::optional<LaneGroups>();
  }
  UniqueFd fd = std::move(received->second);
  received_.erase(received);
  const auto lanes = static_cast<std::size_t>(knobs_.num_lanes);
  LIGHTCC_ASSIGN_OR_RETURN(ShmSegment segment,
                           ShmSegment::map(std::move(fd), lanes * lane_bytes(ranks.size())));
  return std::optional<LaneGroups>(make_shm_lanes(std::move(segment), ranks));
}

LaneGroups GroupMaker::make_shm_lanes(ShmSegment segment,
                                      const std::vector<std::int32_t>& ranks) const {
  std::vector<Doorbell> doorbells;
  int own = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t place = place_of(world_.host.ranks, ranks[i]);
    const bool is_own = ranks[i] == world_.topology.rank;
    own = is_own ? static_cast<int>(i) : own;
    doorbells.push_back(is_own ? Doorbell() : world_.host.doorbell(place));
  }
  LaneGroups lanes;
  const std::size_t bytes = lane_bytes(ranks.size());
  for (std::size_t lane = 0; lane < static_cast<std::size_t>(knobs_.num_lanes); ++lane) {
    lanes.groups.push_back(make_shm_group(
        segment.memory().subspan(lane * bytes, bytes), own, doorbells, shm_options(ranks.size())));
  }
  lanes.segment = std::move(segment);
  return lanes;
}

LaneGroups GroupMaker::make_net_lanes(std::uint32_t process_set,
                                      const std::vector<std::int32_t>& ranks) const {
  std::vector<NetMember> members;
  int own = 0;
  for (const std::int32_t rank : ranks) {
    own = rank == world_.topology.rank ? static_cast<int>(members.size()) : own;
    members.push_back({static_cast<std::uint32_t>(rank),
                       world_.transport_handles[static_cast<std::size_t>(rank)]});
  }
  NetGroupOptions options;
  options.simd = simd_;
  LaneGroups lanes;
  for (std::uint32_t lane = 0; lane < static_cast<std::uint32_t>(knobs_.num_lanes); ++lane) {
    lanes.groups.push_back(
        make_net_group(*world_.transport, members, own, process_set, lane, options));
  }
  return lanes;
}

}  // namespace lightcc
