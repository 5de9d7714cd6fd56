// Accepts connections and runs the server's side of all their handshakes at once.
//
// Everything waits in one epoll set, which is wait_fd(): the listening socket, a timer and one
// socket per handshake. Tags of handshakes count upwards, so the map of them is in order of age and
// its first entry has the earliest deadline.
//
// Two things stop accept() for a while instead of spinning or failing: no descriptors left, and a
// full house whose oldest member came so recently that it may be an honest client in a burst.
// Clients then wait in the kernel's backlog.
//
// Strangers cost descriptors, which the whole process shares. They may have an eighth of them; and
// hardly any where only a quarter is left. The kernel gives out the lowest number that is free, so
// the number of a newcomer says how many are.
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "lightcc/net/authenticated.hpp"
#include "lightcc/net/handshake_io.hpp"
#include "lightcc/net/poller.hpp"
#include "lightcc/wire/handshake.hpp"

namespace lightcc {
namespace {

constexpr std::uint64_t kListenerTag = 0;
constexpr std::uint64_t kListenerTimerTag = 1;
constexpr std::uint64_t kFirstPeerTag = 2;
constexpr int kBacklog = 1024;
constexpr int kAcceptsPerPoll = 32;
constexpr Duration kGraceBeforeEviction = std::chrono::milliseconds(200);
constexpr Duration kPauseWithoutResources = std::chrono::milliseconds(100);
constexpr Duration kLongShortage = std::chrono::seconds(1);
constexpr std::size_t kPendingShare = 8;  // One in so many descriptors, for each listener.
constexpr std::size_t kReservedShare = 4;
constexpr std::size_t kPendingInReserve = 2;

std::size_t descriptor_limit() {
  rlimit limit{};
  const bool is_known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_known ? static_cast<std::size_t>(limit.rlim_cur) : std::size_t{1} << 20;
}

std::int32_t credentials_pid(int fd, int family) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (family != AF_UNIX || ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return 0;
  }
  return credentials.pid;
}

// Failures of accept() that concern one newcomer (or the network), not the listener: accept(2).
bool is_newcomers_failure(int error_number) {
  switch (error_number) {
    case EINTR:
    case ECONNABORTED:
    case EPERM:
    case EPROTO:
    case ENOPROTOOPT:
    case EOPNOTSUPP:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENONET:
      return true;
    default:
      return false;
  }
}

bool is_shortage(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

struct Peer {
  UniqueFd fd;
  detail::HandshakeIo<ServerHandshake> io;
  TimePoint since;
  std::uint32_t events = 0;  ///< What epoll watches for it.
};

class Listener final : public AuthListener {
 public:
  Listener(UniqueFd socket,
           const SocketAddress& address,
           std::string secret,
           const AuthListenerOptions& options,
           const Clock& clock,
           Poller poller,
           Timer timer)
      : socket_(std::move(socket)),
        address_(address),
        secret_(std::move(secret)),
        options_(options),
        clock_(clock),
        poller_(std::move(poller)),
        timer_(std::move(timer)) {}

  const SocketAddress& address() const override { return address_; }
  int wait_fd() const override { return poller_.fd(); }
  std::uint64_t rejected() const override { return rejected_; }
  Status shortage() const override {
    if (!short_since_.has_value() || clock_.now() < *short_since_ + kLongShortage) {
      return {};
    }
    return make_system_error(ErrorCode::kSystem,
                             shortage_error_,
                             "cannot accept connections on %s",
                             address_.to_string().c_str());
  }

  Result<std::optional<AuthenticatedSocket>> poll() override {
    const TimePoint now = clock_.now();
    while (!peers_.empty() && peers_.begin()->second.since + options_.handshake_timeout <= now) {
      reject(peers_.begin());
    }
    if (!accepting_ && now >= resume_at_) {
      resume_accepting();
    }
    Poller::Events buffer;
    LIGHTCC_ASSIGN_OR_RETURN(const auto events, poller_.wait(buffer, 0));
    std::optional<AuthenticatedSocket> finished;
    for (const epoll_event& event : events) {
      if (event.data.u64 == kListenerTimerTag) {
        timer_.disarm();  // No longer readable; what is due next is armed below.
        armed_for_.reset();
      } else if (event.data.u64 == kListenerTag) {
        LIGHTCC_RETURN_IF_ERROR(accept_newcomers(now));
      } else if (!finished) {  // A second one waits in epoll for the next call.
        LIGHTCC_ASSIGN_OR_RETURN(finished, advance(event.data.u64));
      }
    }
    arm_timer(now);
    return finished;
  }

  Status watch() {
    LIGHTCC_RETURN_IF_ERROR(poller_.add(socket_.get(), EPOLLIN, kListenerTag));
    return poller_.add(timer_.fd(), EPOLLIN, kListenerTimerTag);
  }

 private:
  using Peers = std::map<std::uint64_t, Peer>;

  Status accept_newcomers(TimePoint now) {
    const std::size_t limit = descriptor_limit();
    for (int i = 0; i < kAcceptsPerPoll && accepting_; ++i) {
      if (peers_.size() >= max_pending(limit) && !may_evict(now)) {
        pause_accepting(min_promising()->second.since + kGraceBeforeEviction);
        break;
      }
      UniqueFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (fd.valid()) {
        short_since_.reset();
        is_short_ = static_cast<std::size_t>(fd.get()) >= limit - limit / kReservedShare;
        evict_down_to(max_pending(limit) - 1, now);
        LIGHTCC_RETURN_IF_ERROR(greet(std::move(fd), now));
      } else if (is_shortage(errno)) {
        shortage_error_ = errno;
        short_since_ = short_since_.value_or(now);
        evict_down_to(0, now);
        pause_accepting(now + kPauseWithoutResources);
      } else if (would_block(errno)) {
        short_since_.reset();
        break;
      } else if (!is_newcomers_failure(errno)) {
        return make_system_error(
            ErrorCode::kSystem, errno, "cannot accept on %s", address_.to_string().c_str());
      }
    }
    return {};
  }

  std::size_t max_pending(std::size_t limit) const {
    const std::size_t share = is_short_ ? kPendingInReserve : limit / kPendingShare;
    return std::clamp<std::size_t>(share, 1, options_.max_pending);
  }

  /// The oldest that has said nothing, or else the oldest. Call only when there is one.
  Peers::iterator min_promising() {
    const auto silent = std::ranges::find_if(
        peers_, [](const auto& entry) { return !entry.second.io.has_heard(); });
    return silent == peers_.end() ? peers_.begin() : silent;
  }

  bool may_evict(TimePoint now) {
    return now >= min_promising()->second.since + kGraceBeforeEviction;
  }

  void evict_down_to(std::size_t count, TimePoint now) {
    while (peers_.size() > count && may_evict(now)) {
      reject(min_promising());
    }
  }

  Status greet(UniqueFd fd, TimePoint now) {
    LIGHTCC_ASSIGN_OR_RETURN(const Nonce nonce, make_nonce());
    tune_stream_socket(fd.get(), address_.family());
    ServerHandshake handshake(secret_, nonce);
    Bytes greeting = handshake.greeting();
    Peer peer{std::move(fd), {std::move(handshake), std::move(greeting)}, now};
    peer.events = peer.io.wanted_events();
    const std::uint64_t tag = next_tag_++;
    if (!poller_.add(peer.fd.get(), peer.events, tag).ok()) {
      ++rejected_;  // No room in the kernel: its connection just closes.
      return {};
    }
    peers_.emplace(tag, std::move(peer));
    return {};
  }

  Result<std::optional<AuthenticatedSocket>> advance(std::uint64_t tag) {
    const auto found = peers_.find(tag);
    if (found == peers_.end()) {
      return std::optional<AuthenticatedSocket>();  // Evicted earlier in this batch of events.
    }
    Peer& peer = found->second;
    const auto advanced = peer.io.advance(peer.fd.get());
    if (!advanced.ok()) {
      reject(found);
      return std::optional<AuthenticatedSocket>();
    }
    if (!advanced.value()) {
      if (peer.events != peer.io.wanted_events()) {
        peer.events = peer.io.wanted_events();
        LIGHTCC_RETURN_IF_ERROR(poller_.modify(peer.fd.get(), peer.events, tag));
      }
      return std::optional<AuthenticatedSocket>();
    }
    poller_.remove(peer.fd.get());
    AuthenticatedSocket socket;
    socket.peer_pid = credentials_pid(peer.fd.get(), address_.family());
    socket.hello = peer.io.handshake().hello();
    socket.fd = std::move(peer.fd);
    forget(found);
    return std::optional(std::move(socket));
  }

  void reject(Peers::iterator peer) {
    ++rejected_;
    poller_.remove(peer->second.fd.get());
    forget(peer);
  }

  void forget(Peers::iterator peer) {
    peers_.erase(peer);
    resume_accepting();  // Whatever was short, a place or a descriptor: there is one more now.
  }

  void pause_accepting(TimePoint until) {
    accepting_ = false;
    resume_at_ = until;
    (void)poller_.modify(socket_.get(), 0, kListenerTag);  // Cannot fail for a watched descriptor.
  }

  void resume_accepting() {
    if (!accepting_) {
      accepting_ = true;
      (void)poller_.modify(socket_.get(), EPOLLIN, kListenerTag);  // As above.
    }
  }

  void arm_timer(TimePoint now) {
    std::optional<TimePoint> next;
    if (!peers_.empty()) {
      next = peers_.begin()->second.since + options_.handshake_timeout;
    }
    if (!accepting_ && (!next || resume_at_ < *next)) {
      next = resume_at_;
    }
    if (next == armed_for_) {
      return;
    }
    if (next) {
      timer_.arm(*next, now);
    } else {
      timer_.disarm();
    }
    armed_for_ = next;
  }

  const UniqueFd socket_;
  const SocketAddress address_;
  const std::string secret_;
  const AuthListenerOptions options_;
  const Clock& clock_;
  Poller poller_;
  Timer timer_;
  std::optional<TimePoint> armed_for_;  ///< Unset: it is not.
  Peers peers_;
  std::uint64_t next_tag_ = kFirstPeerTag;
  std::uint64_t rejected_ = 0;
  bool accepting_ = true;
  std::optional<TimePoint> short_since_;  ///< accept() has failed since.
  int shortage_error_ = 0;
  bool is_short_ = false;  ///< At the last newcomer few descriptors were free.
  TimePoint resume_at_;
};

Result<UniqueFd> bind_and_listen(const SocketAddress& address) {
  LIGHTCC_ASSIGN_OR_RETURN(UniqueFd fd, make_stream_socket(address.family()));
  if (address.family() != AF_UNIX) {
    // A new job may take the port of one that has just ended.
    const int on = 1;
    (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (::bind(fd.get(), address.data(), address.length()) != 0) {
    return make_system_error(
        ErrorCode::kSystem, errno, "cannot bind to %s", address.to_string().c_str());
  }
  if (::listen(fd.get(), kBacklog) != 0) {
    return make_system_error(
        ErrorCode::kSystem, errno, "cannot listen on %s", address.to_string().c_str());
  }
  return fd;
}

}  // namespace

Result<std::unique_ptr<AuthListener>> AuthListener::listen(const SocketAddress& address,
                                                           std::string secret,
                                                           const AuthListenerOptions& options,
                                                           const Clock& clock) {
  if (secret.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "the job secret is empty");
  }
  LIGHTCC_ASSIGN_OR_RETURN(UniqueFd fd, bind_and_listen(address));
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return make_system_error(ErrorCode::kSystem, errno, "getsockname failed");
  }
  const auto bound = SocketAddress::from_sockaddr(reinterpret_cast<sockaddr*>(&storage), length);
  LIGHTCC_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  LIGHTCC_ASSIGN_OR_RETURN(Timer timer, Timer::make());
  AuthListenerOptions sane = options;
  sane.max_pending = std::max<std::size_t>(sane.max_pending, 1);
  auto listener = std::make_unique<Listener>(
      std::move(fd), bound, std::move(secret), sane, clock, std::move(poller), std::move(timer));
  LIGHTCC_RETURN_IF_ERROR(listener->watch());
  return std::unique_ptr<AuthListener>(std::move(listener));
}

}  // namespace lightcc
