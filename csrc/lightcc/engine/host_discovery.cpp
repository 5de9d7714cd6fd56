#include "lightcc/engine/host_discovery.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "lightcc/collectives/one_shot_rounds.hpp"
#include "lightcc/transport/shm/byte_ring.hpp"
#include "lightcc/wire/handshake.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kMaxCardText = 256;
// SCM_RIGHTS carries at most 253 descriptors: one segment and one bell per rank.
constexpr std::size_t kMaxRanksPerHost = 252;
constexpr std::uint8_t kLocalPurpose = 'L';
// How long the news may take that a rank whose name is gone has ended.
constexpr Duration kDeathNotice = std::chrono::seconds(1);

Bytes hello_of(std::uint64_t world_id, int rank) {
  Bytes hello;
  ByteWriter writer(hello);
  writer.number(kLocalPurpose);
  writer.number(world_id);
  writer.number(static_cast<std::int32_t>(rank));
  return hello;
}

// The rank, or -1 for a connection of another world.
int rank_in(const Bytes& hello, std::uint64_t world_id) {
  ByteReader reader(hello);
  const bool local = reader.number<std::uint8_t>() == kLocalPurpose;
  const bool same = reader.number<std::uint64_t>() == world_id;
  const auto rank = reader.number<std::int32_t>();
  return reader.finished() && local && same ? rank : -1;
}

Result<std::string> random_name() {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name = "lightcc-";
  LIGHTCC_ASSIGN_OR_RETURN(const Nonce nonce, make_nonce());
  for (std::size_t i = 0; i < 16; ++i) {
    name += kDigits[std::to_integer<unsigned>(nonce[i]) % 16];
  }
  return name;
}

std::size_t rings_offset(std::size_t members) {
  const std::size_t alignment = alignof(ByteRingHeader);
  return (members * sizeof(SleepWord) + alignment - 1) / alignment * alignment;
}

std::size_t one_shot_offset(std::size_t members) {
  return rings_offset(members) + (members - 1) * 2 * byte_ring_bytes(kControlRingBytes);
}

std::size_t one_shot_bytes(std::size_t members) {
  return members > OneShotRounds::kMaxMembers ? 0 : OneShotRounds::bytes(members);
}

std::size_t segment_bytes(std::size_t members) {
  return one_shot_offset(members) + one_shot_bytes(members);
}

Status send_fds_now(int socket, const std::vector<int>& fds) {
  const std::array<std::byte, 1> payload{};
  LIGHTCC_ASSIGN_OR_RETURN(const bool sent, send_fds(socket, payload, fds));
  // The very first bytes on a fresh socket always fit.
  return sent ? Status() : make_error(ErrorCode::kSystem, "a new Unix socket has no room");
}

std::span<SleepWord> words_in(const ShmSegment& segment, std::size_t members) {
  return {reinterpret_cast<SleepWord*>(segment.memory().data()), members};
}

}  // namespace

Bytes encode_card(const RankCard& card) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.string(card.unix_name);
  writer.string(card.host_id);
  return bytes;
}

Result<RankCard> decode_card(const Bytes& bytes) {
  ByteReader reader(bytes);
  RankCard card;
  card.unix_name = reader.string(kMaxCardText);
  card.host_id = reader.string(kMaxCardText);
  if (!reader.finished()) {
    return make_error(ErrorCode::kPeerFailed, "a rank's card in the store does not parse");
  }
  return card;
}

Status wait_readable(int fd, TimePoint deadline, const std::string& what, RendezvousRound* round) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::system().now()).count();
    if (left <= 0) {
      return make_error(ErrorCode::kTimeout, "timed out waiting for %s", what.c_str());
    }
    // poll() leaves out a negative descriptor.
    const int events = round != nullptr ? round->event_fd() : -1;
    std::array<pollfd, 2> entries = {pollfd{fd, POLLIN, 0}, pollfd{events, POLLIN, 0}};
    const int ready = ::poll(
        entries.data(), entries.size(), static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (ready < 0 && errno != EINTR) {
      return make_system_error(ErrorCode::kSystem, errno, "poll failed");
    }
    if (ready > 0 && entries[1].revents != 0) {
      LIGHTCC_RETURN_IF_ERROR(round->failure({}));
    }
    if (ready > 0 && entries[0].revents != 0) {
      return {};
    }
  }
}

std::span<std::byte> control_ring_memory(const HostMembership& host,
                                         std::size_t index,
                                         bool upwards) {
  const std::size_t bytes = byte_ring_bytes(kControlRingBytes);
  const std::size_t number = (index - 1) * 2 + (upwards ? 0 : 1);
  return host.segment.memory().subspan(rings_offset(host.ranks.size()) + number * bytes, bytes);
}

std::span<std::byte> one_shot_memory(const HostMembership& host) {
  const std::size_t members = host.ranks.size();
  return host.segment.memory().subspan(one_shot_offset(members), one_shot_bytes(members));
}

HostDiscovery::HostDiscovery(std::string secret,
                             RankCard card,
                             std::unique_ptr<AuthListener> listener,
                             RendezvousRound* round)
    : secret_(std::move(secret)),
      card_(std::move(card)),
      listener_(std::move(listener)),
      round_(round) {}

std::unique_ptr<HostDiscovery> HostDiscovery::alone() {
  return std::unique_ptr<HostDiscovery>(new HostDiscovery({}, {}, nullptr, nullptr));
}

Result<std::unique_ptr<HostDiscovery>> HostDiscovery::open(std::string secret,
                                                           std::string host_id,
                                                           RendezvousRound& round) {
  LIGHTCC_ASSIGN_OR_RETURN(std::string name, random_name());
  RankCard card{std::move(name), std::move(host_id)};
  AuthListenerOptions options;
  options.max_pending = 2 * kMaxRanksPerHost;
  LIGHTCC_ASSIGN_OR_RETURN(
      auto listener,
      AuthListener::listen(SocketAddress::abstract_unix(card.unix_name), secret, options));
  return std::unique_ptr<HostDiscovery>(
      new HostDiscovery(std::move(secret), std::move(card), std::move(listener), &round));
}

Result<int> HostDiscovery::find_leader(const std::vector<RankCard>& cards,
                                       int rank,
                                       std::uint64_t world_id,
                                       TimePoint deadline) {
  world_id_ = world_id;
  for (int candidate = 0; candidate < rank; ++candidate) {
    const RankCard& card = cards[static_cast<std::size_t>(candidate)];
    if (card.host_id != card_.host_id) {
      continue;
    }
    // Only whether the name exists here is asked now; the leader answers, and both prove the
    // secret, in assemble(), when every rank knows its leader.
    LIGHTCC_ASSIGN_OR_RETURN(auto connector,
                             AuthConnector::start(SocketAddress::abstract_unix(card.unix_name),
                                                  secret_,
                                                  hello_of(world_id, rank),
                                                  deadline));
    const auto refused = connector->poll().status();
    if (refused.ok()) {
      leader_connector_ = std::move(connector);
      return candidate;
    }
    // Refused: there is no such name in this network namespace, so it is another host. Unless the
    // user said that it is this one; or the rank is gone, and with it its name.
    if (!card_.host_id.empty()) {
      LIGHTCC_RETURN_IF_ERROR(
          round_->failure(std::min(deadline, Clock::system().now() + kDeathNotice)));
      return make_error(ErrorCode::kInvalidArgument,
                        "LIGHT_HOST_ID=\"%s\" says that ranks %d and %d share a host, but they do "
                        "not share a network namespace: %s",
                        card_.host_id.c_str(),
                        candidate,
                        rank,
                        refused.message().c_str());
    }
  }
  return rank;
}

Result<HostMembership> HostDiscovery::assemble(std::vector<int> ranks,
                                               int rank,
                                               TimePoint deadline) {
  if (ranks.size() > kMaxRanksPerHost) {
    return make_error(ErrorCode::kUnimplemented,
                      "%zu ranks share a host; at most %zu can",
                      ranks.size(),
                      kMaxRanksPerHost);
  }
  HostMembership host;
  host.index = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
  host.ranks = std::move(ranks);
  host.bell = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!host.bell.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot make an eventfd");
  }
  LIGHTCC_RETURN_IF_ERROR(host.is_leader() ? lead(host, deadline) : follow(host, deadline));
  host.words = words_in(host.segment, host.ranks.size());
  listener_.reset();
  return host;
}

Result<std::vector<UniqueFd>> HostDiscovery::receive_fds(int socket,
                                                         std::size_t count,
                                                         TimePoint deadline) {
  std::array<std::byte, 1> payload{};
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(std::optional<ReceivedFds> message, recv_fds(socket, payload, count));
    if (message.has_value()) {
      return std::move(message->fds);
    }
    LIGHTCC_RETURN_IF_ERROR(wait_readable(socket, deadline, "a rank of this host", round_));
  }
}

Result<AuthenticatedSocket> HostDiscovery::next_member(const HostMembership& host,
                                                       TimePoint deadline) {
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(std::optional<AuthenticatedSocket> newcomer, listener_->poll());
    if (newcomer.has_value()) {
      return std::move(*newcomer);
    }
    LIGHTCC_RETURN_IF_ERROR(listener_->shortage());
    std::string missing;
    for (std::size_t index = 1; index < host.ranks.size(); ++index) {
      if (!host.sockets[index].valid()) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(host.ranks[index]);
      }
    }
    LIGHTCC_RETURN_IF_ERROR(wait_readable(
        listener_->wait_fd(), deadline, "ranks [" + missing + "] of this host", round_));
  }
}

Status HostDiscovery::lead(HostMembership& host, TimePoint deadline) {
  const std::size_t members = host.ranks.size();
  LIGHTCC_ASSIGN_OR_RETURN(host.segment, ShmSegment::create(segment_bytes(members)));
  host.sockets.resize(members);
  host.pids.resize(members, 0);
  host.peer_bells.resize(members);
  for (std::size_t arrived = 1; arrived < members;) {
    LIGHTCC_ASSIGN_OR_RETURN(AuthenticatedSocket member, next_member(host, deadline));
    const int rank = rank_in(member.hello, world_id_);
    const auto position = std::find(host.ranks.begin() + 1, host.ranks.end(), rank);
    if (rank < 0 || position == host.ranks.end()) {
      continue;  // It is of another world or host.
    }
    const auto index = static_cast<std::size_t>(position - host.ranks.begin());
    LIGHTCC_ASSIGN_OR_RETURN(std::vector<UniqueFd> bell, receive_fds(member.fd.get(), 1, deadline));
    if (bell.size() != 1 || host.sockets[index].valid()) {
      return Status(
          ErrorCode::kPeerFailed, "unexpected descriptors from a rank of this host", rank);
    }
    host.peer_bells[index] = std::move(bell[0]);
    host.sockets[index] = std::move(member.fd);
    host.pids[index] = member.peer_pid;
    ++arrived;
  }
  std::vector<int> shared = {host.segment.fd()};
  for (std::size_t index = 0; index < members; ++index) {
    shared.push_back(index == 0 ? host.bell.get() : host.peer_bells[index].get());
  }
  for (std::size_t index = 1; index < members; ++index) {
    LIGHTCC_RETURN_IF_ERROR(send_fds_now(host.sockets[index].get(), shared));
  }
  return {};
}

Result<UniqueFd> HostDiscovery::finish_connecting(const HostMembership& host, TimePoint deadline) {
  while (true) {
    auto polled = leader_connector_->poll();
    if (!polled.ok()) {
      const int leader = host.ranks.front();
      return Status(polled.status().code(),
                    "this host's leader, rank " + std::to_string(leader) +
                        ", does not answer: " + polled.status().message(),
                    leader);
    }
    std::optional<UniqueFd> socket = std::move(polled).value();
    if (socket.has_value()) {
      leader_connector_.reset();
      return std::move(*socket);
    }
    const std::string leader = "this host's leader, rank " + std::to_string(host.ranks.front());
    LIGHTCC_RETURN_IF_ERROR(wait_readable(leader_connector_->wait_fd(), deadline, leader, round_));
  }
}

Status HostDiscovery::follow(HostMembership& host, TimePoint deadline) {
  const std::size_t members = host.ranks.size();
  LIGHTCC_ASSIGN_OR_RETURN(UniqueFd leader, finish_connecting(host, deadline));
  LIGHTCC_RETURN_IF_ERROR(send_fds_now(leader.get(), {host.bell.get()}));
  LIGHTCC_ASSIGN_OR_RETURN(std::vector<UniqueFd> shared,
                           receive_fds(leader.get(), members + 1, deadline));
  if (shared.size() != members + 1) {
    return Status(
        ErrorCode::kPeerFailed, "unexpected descriptors from this host's leader", host.ranks[0]);
  }
  LIGHTCC_ASSIGN_OR_RETURN(host.segment,
                           ShmSegment::map(std::move(shared[0]), segment_bytes(members)));
  for (std::size_t index = 0; index < members; ++index) {
    UniqueFd bell = std::move(shared[index + 1]);
    host.peer_bells.push_back(static_cast<int>(index) == host.index ? UniqueFd() : std::move(bell));
  }
  host.sockets.push_back(std::move(leader));
  ucred peer{};
  socklen_t length = sizeof(peer);
  const bool known =
      ::getsockopt(host.sockets[0].get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
  host.pids.push_back(known ? peer.pid : 0);
  return {};
}

}  // namespace lightcc
