// Sockets that prove the job secret before anything else is read from them.
//
// AuthListener accepts on one listening socket and runs the handshakes of all newcomers without
// blocking; strangers (garbage, wrong secret, silence beyond the handshake deadline, too many at
// once) are dropped and counted, and never disturb the rest. AuthConnector is the other end, also
// without blocking; connect_authenticated() is it run to completion.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/socket_address.hpp"

namespace lightcc {

/// A connection whose other end knows the secret. The socket is non-blocking and close-on-exec.
struct AuthenticatedSocket {
  UniqueFd fd;
  Bytes hello;                ///< What the client said of itself.
  std::int32_t peer_pid = 0;  ///< SO_PEERCRED for Unix sockets, else 0.
};

struct AuthListenerOptions {
  Duration handshake_timeout = std::chrono::seconds(5);
  /// Handshakes under way. It is also bounded by the process's limit of descriptors, most of which
  /// are the job's. The oldest that has not said anything is dropped for a newcomer.
  std::size_t max_pending = 256;
};

/// Thread: one. Blocks: never.
class AuthListener {
 public:
  virtual ~AuthListener() = default;
  /// Binds (port 0: any) and listens.
  static Result<std::unique_ptr<AuthListener>> listen(const SocketAddress& address,
                                                      std::string secret,
                                                      const AuthListenerOptions& options,
                                                      const Clock& clock = Clock::system());
  virtual const SocketAddress& address() const = 0;  ///< With the real port.
  /// Readable when poll() has something to do (an epoll descriptor; handshake deadlines included).
  virtual int wait_fd() const = 0;
  /// Moves all handshakes on; the next finished connection, or nothing for now.
  virtual Result<std::optional<AuthenticatedSocket>> poll() = 0;
  /// kSystem when newcomers have waited for a second because the system gives this process no
  /// descriptor or memory for them. It is not final: they come in as soon as there is some.
  virtual Status shortage() const = 0;
  /// Newcomers that were turned away since the start.
  virtual std::uint64_t rejected() const = 0;
};

/// Thread: one. Blocks: never.
class AuthConnector {
 public:
  virtual ~AuthConnector() = default;
  /// Starts to connect. `hello`: at most kMaxHelloBytes.
  static Result<std::unique_ptr<AuthConnector>> start(const SocketAddress& address,
                                                      std::string secret,
                                                      Bytes hello,
                                                      TimePoint deadline,
                                                      const Clock& clock = Clock::system());
  virtual int wait_fd() const = 0;
  /// The connected, proven socket, once; nothing while under way. kPeerFailed, kTimeout.
  virtual Result<std::optional<UniqueFd>> poll() = 0;
};

/// Connects and proves, retrying refused TCP connections until `deadline` when `retry_refused`.
/// Gives up, with kPeerFailed, when `event_fd` (if not negative) becomes readable.
/// Blocks: until the deadline at most.
Result<UniqueFd> connect_authenticated(const SocketAddress& address,
                                       const std::string& secret,
                                       const Bytes& hello,
                                       TimePoint deadline,
                                       bool retry_refused,
                                       int event_fd = -1);

}  // namespace lightcc
