#include "lightcc/engine/host_discovery.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include "lightcc/collectives/one_shot_rounds.hpp"
#include "lightcc/control/control_tree.hpp"
#include "lightcc/transport/shm/byte_ring.hpp"
#include "lightcc/wire/handshake.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kMaxCardText = 1024;
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
  return rings_offset(members) + (members - 1) * 2 * byte_ring_bytes(control_ring_bytes(members));
}

std::size_t one_shot_bytes(std::size_t members) {
  return members > OneShotRounds::kMaxMembers ? 0 : OneShotRounds::bytes(members);
}

std::size_t segment_bytes(std::size_t members) {
  return one_shot_offset(members) + one_shot_bytes(members);
}

std::size_t parent_of(std::size_t position) {
  return (position - 1) / kTreeArity;
}

std::size_t first_child_of(std::size_t position) {
  return position * kTreeArity + 1;
}

// Ranks that are not the leader's children see its end in another way.
bool has_grandchildren(std::size_t members) {
  return members > first_child_of(1);
}

UniqueFd open_pidfd(std::int32_t pid) {
  // Not found: an old kernel, or a process of another pid namespace; the sockets have to do.
  return pid > 0 ? UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) : UniqueFd();
}

// Ranks that are threads of one process are told apart by their sockets.
WatchedProcess watch(std::size_t position, UniqueFd socket, std::int32_t pid) {
  return {position, std::move(socket), open_pidfd(pid != ::getpid() ? pid : 0), pid};
}

// The process behind a pidfd, as this process would call it; 0: it has no name for it.
std::int32_t pid_behind(int pidfd) {
  std::ifstream file("/proc/self/fdinfo/" + std::to_string(pidfd));
  for (std::string word; file >> word;) {
    if (std::int32_t pid = 0; word == "Pid:" && file >> pid && pid > 0) {
      return pid;
    }
  }
  return 0;
}

std::int32_t pid_of_peer(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  const bool known = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
  return known ? peer.pid : 0;
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
  writer.string(card.switches);
  writer.number(static_cast<std::uint8_t>(card.from_slurm));
  writer.number(static_cast<std::uint8_t>(card.has_gpus));
  return bytes;
}

Result<RankCard> decode_card(const Bytes& bytes) {
  ByteReader reader(bytes);
  RankCard card;
  card.unix_name = reader.string(kMaxCardText);
  card.host_id = reader.string(kMaxCardText);
  card.switches = reader.string(kMaxCardText);
  card.from_slurm = reader.number<std::uint8_t>() != 0;
  card.has_gpus = reader.number<std::uint8_t>() != 0;
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

std::size_t control_ring_bytes(std::size_t members) {
  constexpr std::size_t kRingsOfAll = std::size_t{8} << 20;
  constexpr std::size_t kSmallest = std::size_t{16} << 10;
  constexpr std::size_t kLargest = std::size_t{64} << 10;
  return std::clamp(std::bit_floor(kRingsOfAll / (2 * members)), kSmallest, kLargest);
}

std::span<std::byte> control_ring_memory(const HostMembership& host,
                                         std::size_t index,
                                         bool upwards) {
  const std::size_t bytes = byte_ring_bytes(control_ring_bytes(host.ranks.size()));
  const std::size_t number = (index - 1) * 2 + (upwards ? 0 : 1);
  return host.segment.memory().subspan(rings_offset(host.ranks.size()) + number * bytes, bytes);
}

std::span<std::byte> one_shot_memory(const HostMembership& host) {
  const std::size_t members = host.ranks.size();
  return host.segment.memory().subspan(one_shot_offset(members), one_shot_bytes(members));
}

struct HostDiscovery::Inheritance {
  HostMail::Token token{};
  UniqueFd segment;
  UniqueFd life;   // Its other end closes with the leader. Empty where all are its children.
  UniqueFd pidfd;  // The leader's, in any pid namespace; empty as well where there is none.
};

HostDiscovery::HostDiscovery(std::string secret,
                             RankCard card,
                             std::unique_ptr<AuthListener> listener,
                             HostMail mail,
                             RendezvousRound* round)
    : secret_(std::move(secret)),
      card_(std::move(card)),
      listener_(std::move(listener)),
      mail_(std::move(mail)),
      round_(round) {}

std::unique_ptr<HostDiscovery> HostDiscovery::alone() {
  return std::unique_ptr<HostDiscovery>(new HostDiscovery({}, {}, nullptr, {}, nullptr));
}

Result<std::unique_ptr<HostDiscovery>> HostDiscovery::open(std::string secret,
                                                           RankCard card,
                                                           RendezvousRound& round) {
  LIGHTCC_ASSIGN_OR_RETURN(card.unix_name, random_name());
  LIGHTCC_ASSIGN_OR_RETURN(HostMail mail, HostMail::open(card.unix_name));
  LIGHTCC_ASSIGN_OR_RETURN(
      auto listener,
      AuthListener::listen(
          SocketAddress::abstract_unix(card.unix_name), secret, AuthListenerOptions{}));
  return std::unique_ptr<HostDiscovery>(new HostDiscovery(
      std::move(secret), std::move(card), std::move(listener), std::move(mail), &round));
}

Result<int> HostDiscovery::find_leader(const std::vector<RankCard>& cards,
                                       int rank,
                                       TimePoint deadline) {
  for (int candidate = 0; candidate < rank; ++candidate) {
    const RankCard& card = cards[static_cast<std::size_t>(candidate)];
    if (card.host_id != card_.host_id) {
      continue;
    }
    // Both prove the secret in assemble(), when every rank knows its leader.
    LIGHTCC_ASSIGN_OR_RETURN(const bool is_here, HostMail::exists(card.unix_name));
    if (is_here) {
      return candidate;
    }
    // There is no such name in this network namespace, so it is another host. Unless the user said
    // that it is this one; or the rank is gone, and with it its name.
    if (!card_.host_id.empty()) {
      LIGHTCC_RETURN_IF_ERROR(
          round_->failure(std::min(deadline, Clock::system().now() + kDeathNotice)));
      return make_error(ErrorCode::kInvalidArgument,
                        "LIGHT_HOST_ID=\"%s\" says that ranks %d and %d share a host, but they do "
                        "not share a network namespace",
                        card_.host_id.c_str(),
                        candidate,
                        rank);
    }
  }
  return rank;
}

Result<HostMembership> HostDiscovery::assemble(std::vector<int> ranks,
                                               const std::vector<RankCard>& cards,
                                               int rank,
                                               std::uint64_t world_id,
                                               TimePoint deadline) {
  world_id_ = world_id;
  HostMembership host;
  host.index = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
  host.ranks = std::move(ranks);
  host.bell = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!host.bell.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot make an eventfd");
  }
  LIGHTCC_ASSIGN_OR_RETURN(Inheritance inherited,
                           host.is_leader() ? lead(host) : follow(host, cards, deadline));
  host.words = words_in(host.segment, host.ranks.size());
  LIGHTCC_RETURN_IF_ERROR(pass_on(host, inherited, deadline));
  std::vector<std::string> names;
  names.reserve(host.ranks.size());
  for (const int other : host.ranks) {
    names.push_back(cards[static_cast<std::size_t>(other)].unix_name);
  }
  mail_.meet(names, inherited.token);
  if (host.ranks.size() > 1) {
    host.mail = std::move(mail_);
  }
  const auto position = static_cast<std::size_t>(host.index);
  if (position > 0 && parent_of(position) > 0) {
    const std::int32_t pid = pid_behind(inherited.pidfd.get());
    host.watched.push_back({0, std::move(inherited.life), std::move(inherited.pidfd), pid});
  }
  listener_.reset();
  return host;
}

Result<HostDiscovery::Inheritance> HostDiscovery::lead(HostMembership& host) {
  const std::size_t members = host.ranks.size();
  LIGHTCC_ASSIGN_OR_RETURN(host.segment, ShmSegment::create(segment_bytes(members)));
  Inheritance inherited;
  LIGHTCC_ASSIGN_OR_RETURN(inherited.token, make_nonce());
  inherited.segment = host.segment.give_up_fd();
  if (has_grandchildren(members)) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
      return make_system_error(ErrorCode::kSystem, errno, "cannot make a pair of sockets");
    }
    host.life = UniqueFd(ends[0]);
    inherited.life = UniqueFd(ends[1]);
    inherited.pidfd = open_pidfd(::getpid());
  }
  return inherited;
}

Result<HostDiscovery::Inheritance> HostDiscovery::follow(HostMembership& host,
                                                         const std::vector<RankCard>& cards,
                                                         TimePoint deadline) {
  const std::size_t members = host.ranks.size();
  const std::size_t parent = parent_of(static_cast<std::size_t>(host.index));
  const int parent_rank = host.ranks[parent];
  LIGHTCC_ASSIGN_OR_RETURN(UniqueFd socket,
                           connect(cards[static_cast<std::size_t>(parent_rank)],
                                   host.ranks[static_cast<std::size_t>(host.index)],
                                   parent_rank,
                                   deadline));
  LIGHTCC_ASSIGN_OR_RETURN(Inheritance inherited, receive(socket.get(), parent_rank, deadline));
  UniqueFd segment(::fcntl(inherited.segment.get(), F_DUPFD_CLOEXEC, 0));
  LIGHTCC_ASSIGN_OR_RETURN(host.segment,
                           ShmSegment::map(std::move(segment), segment_bytes(members)));
  (void)host.segment.give_up_fd();
  const std::int32_t pid = pid_of_peer(socket.get());
  host.watched.push_back(watch(parent, std::move(socket), pid));
  return inherited;
}

Result<UniqueFd> HostDiscovery::connect(const RankCard& to,
                                        int rank,
                                        int parent,
                                        TimePoint deadline) {
  const std::string what = "rank " + std::to_string(parent) + " of this host";
  LIGHTCC_ASSIGN_OR_RETURN(const auto connector,
                           AuthConnector::start(SocketAddress::abstract_unix(to.unix_name),
                                                secret_,
                                                hello_of(world_id_, rank),
                                                deadline));
  while (true) {
    Result<std::optional<UniqueFd>> polled = connector->poll();
    if (!polled.ok()) {
      return Status(
          polled.status().code(), what + " does not answer: " + polled.status().message(), parent);
    }
    if (polled->has_value()) {
      return std::move(**polled);
    }
    LIGHTCC_RETURN_IF_ERROR(wait_readable(connector->wait_fd(), deadline, what, round_));
  }
}

Result<HostDiscovery::Inheritance> HostDiscovery::receive(int socket,
                                                          int parent,
                                                          TimePoint deadline) {
  Inheritance inherited;
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(std::optional<ReceivedFds> message,
                             recv_fds(socket, inherited.token, 3));
    if (!message.has_value()) {
      const std::string what = "rank " + std::to_string(parent) + " of this host";
      LIGHTCC_RETURN_IF_ERROR(wait_readable(socket, deadline, what, round_));
      continue;
    }
    if (message->payload_bytes != inherited.token.size() || message->fds.empty()) {
      return Status(
          ErrorCode::kPeerFailed, "unexpected descriptors from a rank of this host", parent);
    }
    const std::array targets = {&inherited.segment, &inherited.life, &inherited.pidfd};
    for (std::size_t i = 0; i < message->fds.size(); ++i) {
      *targets[i] = std::move(message->fds[i]);
    }
    return inherited;
  }
}

Status HostDiscovery::pass_on(HostMembership& host,
                              const Inheritance& inherited,
                              TimePoint deadline) {
  std::vector<int> fds;
  for (const UniqueFd* const fd : {&inherited.segment, &inherited.life, &inherited.pidfd}) {
    if (fd->valid()) {
      fds.push_back(fd->get());
    }
  }
  const std::size_t first = first_child_of(static_cast<std::size_t>(host.index));
  const std::size_t last = std::min(first + kTreeArity, host.ranks.size());
  std::set<int> missing;
  for (std::size_t position = first; position < last; ++position) {
    missing.insert(host.ranks[position]);
  }
  while (!missing.empty()) {
    LIGHTCC_ASSIGN_OR_RETURN(AuthenticatedSocket child, next_child(missing, deadline));
    const int rank = rank_in(child.hello, world_id_);
    if (missing.erase(rank) == 0) {
      continue;  // It is of another world or host.
    }
    LIGHTCC_ASSIGN_OR_RETURN(const bool sent, send_fds(child.fd.get(), inherited.token, fds));
    if (!sent) {  // The very first bytes on a fresh socket always fit.
      return make_error(ErrorCode::kSystem, "a new Unix socket has no room");
    }
    const auto position = std::ranges::find(host.ranks, rank) - host.ranks.begin();
    host.watched.push_back(
        watch(static_cast<std::size_t>(position), std::move(child.fd), child.peer_pid));
  }
  return {};
}

Result<AuthenticatedSocket> HostDiscovery::next_child(const std::set<int>& missing,
                                                      TimePoint deadline) {
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(std::optional<AuthenticatedSocket> newcomer, listener_->poll());
    if (newcomer.has_value()) {
      return std::move(*newcomer);
    }
    LIGHTCC_RETURN_IF_ERROR(listener_->shortage());
    std::string names;
    for (const int rank : missing) {
      names += (names.empty() ? "" : ", ") + std::to_string(rank);
    }
    LIGHTCC_RETURN_IF_ERROR(wait_readable(
        listener_->wait_fd(), deadline, "ranks [" + names + "] of this host", round_));
  }
}

}  // namespace lightcc
