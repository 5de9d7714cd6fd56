// Connects and runs the client's side of the handshake.
//
// wait_fd() is an epoll set of the socket and a timer (the deadline). A connector makes one
// attempt; only connect_authenticated() tries again, because only its caller says that the server
// may be late.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lightcc/net/authenticated.hpp"
#include "lightcc/net/handshake_io.hpp"
#include "lightcc/net/poller.hpp"
#include "lightcc/wire/handshake.hpp"

namespace lightcc {
namespace {

constexpr std::uint64_t kSocketTag = 0;
constexpr std::uint64_t kTimerTag = 1;
constexpr Duration kFirstBackoff = std::chrono::milliseconds(5);
constexpr Duration kLongestBackoff = std::chrono::milliseconds(200);
// A Unix socket whose server has a full backlog says "not now" and never becomes writable.
constexpr Duration kFullBacklogRetry = std::chrono::milliseconds(10);

Status timed_out(const SocketAddress& address, const std::string& why) {
  return make_error(ErrorCode::kTimeout,
                    "no connection to %s before the deadline: %s",
                    address.to_string().c_str(),
                    why.c_str());
}

// What a server that is still starting, restarting or on its way up would cause.
bool is_like_a_late_server(int error_number) {
  return error_number == ECONNREFUSED || error_number == ECONNRESET || error_number == ETIMEDOUT ||
         error_number == EHOSTUNREACH;
}

// TCP lets a socket connect to itself when the kernel happens to give it the port that it calls: a
// client that keeps calling a local port before its server listens there will meet that one day.
bool is_connected_to_itself(int fd, int family) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_length = sizeof(own);
  socklen_t peer_length = sizeof(peer);
  if (family == AF_UNIX || ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) {
    return false;
  }
  return SocketAddress::from_sockaddr(reinterpret_cast<sockaddr*>(&own), own_length).to_string() ==
         SocketAddress::from_sockaddr(reinterpret_cast<sockaddr*>(&peer), peer_length).to_string();
}

class Connector final : public AuthConnector {
 public:
  static Result<std::unique_ptr<Connector>> make(const SocketAddress& address,
                                                 std::string secret,
                                                 Bytes hello,
                                                 TimePoint deadline,
                                                 const Clock& clock) {
    if (secret.empty()) {
      return make_error(ErrorCode::kInvalidArgument, "the job secret is empty");
    }
    if (hello.size() > kMaxHelloBytes) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a hello of %zu bytes, more than the %zu allowed",
                        hello.size(),
                        kMaxHelloBytes);
    }
    LIGHTCC_ASSIGN_OR_RETURN(const Nonce nonce, make_nonce());
    LIGHTCC_ASSIGN_OR_RETURN(UniqueFd fd, make_stream_socket(address.family()));
    tune_stream_socket(fd.get(), address.family());
    LIGHTCC_ASSIGN_OR_RETURN(Poller poller, Poller::make());
    LIGHTCC_ASSIGN_OR_RETURN(Timer timer, Timer::make());
    LIGHTCC_RETURN_IF_ERROR(poller.add(timer.fd(), EPOLLIN, kTimerTag));
    ClientHandshake handshake(std::move(secret), nonce, std::move(hello));
    auto connector = std::make_unique<Connector>(address,
                                                 std::move(fd),
                                                 std::move(handshake),
                                                 deadline,
                                                 clock,
                                                 std::move(poller),
                                                 std::move(timer));
    connector->begin();
    return connector;
  }

  Connector(const SocketAddress& address,
            UniqueFd fd,
            ClientHandshake handshake,
            TimePoint deadline,
            const Clock& clock,
            Poller poller,
            Timer timer)
      : address_(address),
        deadline_(deadline),
        clock_(clock),
        poller_(std::move(poller)),
        timer_(std::move(timer)),
        fd_(std::move(fd)),
        io_(std::move(handshake), Bytes()) {}

  int wait_fd() const override { return poller_.fd(); }
  /// After a failure: whether another attempt might end better.
  bool may_retry() const { return may_retry_; }

  Result<std::optional<UniqueFd>> poll() override {
    if (over_) {
      return make_error(ErrorCode::kInternal, "poll() on a connector that has finished");
    }
    auto result = step();
    over_ = !result.ok() || result->has_value();
    return result;
  }

 private:
  enum class Stage : std::uint8_t { kIdle, kConnecting, kHandshake };

  // The first connect() is made at once; how it failed is told by poll(), as for later failures.
  void begin() {
    const TimePoint now = clock_.now();
    early_failure_ = connect_now();
    if (!early_failure_.ok()) {
      timer_.arm(now, now);
    } else {
      arm_timer(now);
    }
  }

  Result<std::optional<UniqueFd>> step() {
    LIGHTCC_RETURN_IF_ERROR(early_failure_);
    const TimePoint now = clock_.now();
    if (now >= deadline_) {
      return timed_out(address_, what_is_missing());
    }
    if (stage_ == Stage::kIdle) {
      LIGHTCC_RETURN_IF_ERROR(connect_now());
    }
    if (stage_ == Stage::kConnecting) {
      LIGHTCC_RETURN_IF_ERROR(check_connected());
    }
    if (stage_ == Stage::kHandshake) {
      const auto advanced = io_.advance(fd_.get());
      if (!advanced.ok()) {
        return failure(advanced.status().message(), io_.lost());
      }
      if (advanced.value()) {
        poller_.remove(fd_.get());
        return std::optional(std::move(fd_));
      }
      LIGHTCC_RETURN_IF_ERROR(poller_.modify(fd_.get(), io_.wanted_events(), kSocketTag));
    }
    arm_timer(now);
    return std::optional<UniqueFd>();
  }

  Status connect_now() {
    if (::connect(fd_.get(), address_.data(), address_.length()) != 0) {
      if (errno == EAGAIN && address_.family() == AF_UNIX) {
        return {};
      }
      if (errno != EINPROGRESS) {
        return connect_failure(errno);
      }
    }
    stage_ = Stage::kConnecting;
    return poller_.add(fd_.get(), EPOLLOUT, kSocketTag);
  }

  Status check_connected() {
    pollfd ready{fd_.get(), POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) {
      return {};
    }
    int error = 0;
    socklen_t length = sizeof(error);
    if (::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
      error = errno;
    }
    if (error != 0) {
      return connect_failure(error);
    }
    if (is_connected_to_itself(fd_.get(), address_.family())) {
      return connect_failure(ECONNREFUSED);
    }
    stage_ = Stage::kHandshake;
    return {};
  }

  Status connect_failure(int error_number) {
    may_retry_ = is_like_a_late_server(error_number);
    return make_system_error(
        ErrorCode::kPeerFailed, error_number, "cannot connect to %s", address_.to_string().c_str());
  }

  Status failure(const std::string& why, bool may_retry) {
    may_retry_ = may_retry;
    return make_error(ErrorCode::kPeerFailed,
                      "cannot connect to %s: %s",
                      address_.to_string().c_str(),
                      why.c_str());
  }

  const char* what_is_missing() const {
    if (stage_ != Stage::kHandshake) {
      return "it does not answer";
    }
    return io_.has_received() ? "it does not answer this end's proof of the secret"
                              : "it accepts connections but says nothing";
  }

  void arm_timer(TimePoint now) {
    timer_.arm(stage_ == Stage::kIdle ? std::min(deadline_, now + kFullBacklogRetry) : deadline_,
               now);
  }

  const SocketAddress address_;
  const TimePoint deadline_;
  const Clock& clock_;
  Poller poller_;
  Timer timer_;
  UniqueFd fd_;
  detail::HandshakeIo<ClientHandshake> io_;
  Stage stage_ = Stage::kIdle;
  Status early_failure_;
  bool may_retry_ = false;
  bool over_ = false;
};

/// Waits for either descriptor to be readable (a negative one never is), or `until`. True: there is
/// news.
bool wait_for_event(TimePoint until, int fd, int event_fd) {
  std::array<pollfd, 2> entries = {pollfd{fd, POLLIN, 0}, pollfd{event_fd, POLLIN, 0}};
  const int ready =
      ::poll(entries.data(), entries.size(), milliseconds_until(until, Clock::system().now()));
  return ready > 0 && entries[1].revents != 0;
}

Status called_off(const SocketAddress& address) {
  return make_error(
      ErrorCode::kPeerFailed, "connecting to %s was given up", address.to_string().c_str());
}

Result<UniqueFd> run(Connector& connector,
                     const SocketAddress& address,
                     TimePoint deadline,
                     int event_fd) {
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(std::optional<UniqueFd> connected, connector.poll());
    if (connected) {
      return std::move(*connected);
    }
    // A signal or a slow timer makes one round more; the connector itself knows the deadline.
    if (wait_for_event(deadline, connector.wait_fd(), event_fd)) {
      return called_off(address);
    }
  }
}

}  // namespace

Result<std::unique_ptr<AuthConnector>> AuthConnector::start(const SocketAddress& address,
                                                            std::string secret,
                                                            Bytes hello,
                                                            TimePoint deadline,
                                                            const Clock& clock) {
  LIGHTCC_ASSIGN_OR_RETURN(
      auto connector,
      Connector::make(address, std::move(secret), std::move(hello), deadline, clock));
  return std::unique_ptr<AuthConnector>(std::move(connector));
}

Result<UniqueFd> connect_authenticated(const SocketAddress& address,
                                       const std::string& secret,
                                       const Bytes& hello,
                                       TimePoint deadline,
                                       bool retry_refused,
                                       int event_fd) {
  const Clock& clock = Clock::system();
  Duration backoff = kFirstBackoff;
  std::string last_failure;
  while (true) {
    LIGHTCC_ASSIGN_OR_RETURN(const auto connector,
                             Connector::make(address, secret, hello, deadline, clock));
    auto connected = run(*connector, address, deadline, event_fd);
    if (connected.ok()) {
      return connected;
    }
    const Status status = connected.status();
    if (status.code() == ErrorCode::kTimeout && !last_failure.empty()) {
      return timed_out(address, last_failure);
    }
    if (!retry_refused || !connector->may_retry()) {
      return status;
    }
    last_failure = status.message();
    const TimePoint now = clock.now();
    if (now >= deadline) {
      return timed_out(address, last_failure);
    }
    // Nothing tells a client that a server has begun to listen; all it can do is to ask again.
    if (wait_for_event(std::min(deadline, now + backoff), -1, event_fd)) {
      return called_off(address);
    }
    backoff = std::min(2 * backoff, kLongestBackoff);
  }
}

}  // namespace lightcc
