// The client of the TCP store.
//
// A call borrows a connection that nobody uses (or makes one), sends its request, reads the answer
// and puts the connection back; so a get that waits holds up nobody else. A connection whose answer
// did not come is closed, never put back. Requests may be repeated without harm, so a call whose
// connection breaks is made again on a new one until its deadline.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/authenticated.hpp"
#include "lightcc/net/poller.hpp"
#include "lightcc/rendezvous/tcp_store.hpp"
#include "lightcc/wire/store_messages.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kMaxIdleConnections = 4;
constexpr std::size_t kReadStepBytes = std::size_t{64} << 10;
constexpr Duration kFirstBackoff = std::chrono::milliseconds(5);
constexpr Duration kLongestBackoff = std::chrono::milliseconds(200);

enum class Io : std::uint8_t { kDone, kLost, kLate };

/// Waits until `fd` is ready; kLate at the deadline.
Io wait_until_ready(int fd, short events, TimePoint deadline) {
  while (true) {
    const TimePoint now = Clock::system().now();
    if (now >= deadline) {
      return Io::kLate;
    }
    pollfd entry{fd, events, 0};
    if (::poll(&entry, 1, milliseconds_until(deadline, now)) > 0) {
      return Io::kDone;
    }
  }
}

Io send_all(int fd, std::span<const std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (!would_block(errno)) {
      return Io::kLost;
    } else if (const Io io = wait_until_ready(fd, POLLOUT, deadline); io != Io::kDone) {
      return io;
    }
  }
  return Io::kDone;
}

/// Reads until `in` has `total_bytes`; it grows with what arrives.
Io receive_all(int fd, Bytes& in, std::size_t total_bytes, TimePoint deadline) {
  while (in.size() < total_bytes) {
    const std::size_t before_bytes = in.size();
    in.resize(before_bytes + std::min(total_bytes - before_bytes, kReadStepBytes));
    const ssize_t count = ::recv(fd, in.data() + before_bytes, in.size() - before_bytes, 0);
    const int error = errno;
    in.resize(before_bytes + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0 || (count < 0 && !would_block(error))) {
      return Io::kLost;
    }
    if (count < 0) {
      if (const Io io = wait_until_ready(fd, POLLIN, deadline); io != Io::kDone) {
        return io;
      }
    }
  }
  return Io::kDone;
}

class TcpStore final : public Store {
 public:
  TcpStore(std::string host_and_port, std::string secret)
      : server_(std::move(host_and_port)), secret_(std::move(secret)) {}

  Status set(const std::string& key, std::vector<std::byte> value, TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(key));
    LIGHTCC_RETURN_IF_ERROR(check_store_value(value.size()));
    return call({StoreRequest::Kind::kSet, key, std::move(value)}, deadline).status();
  }

  Result<std::vector<std::byte>> get(const std::string& key, TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(key));
    LIGHTCC_ASSIGN_OR_RETURN(StoreAnswer answer,
                             call({StoreRequest::Kind::kGet, key, {}}, deadline));
    return std::move(answer.value);
  }

  Status remove_prefix(const std::string& prefix, TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(prefix));
    return call({StoreRequest::Kind::kRemovePrefix, prefix, {}}, deadline).status();
  }

 private:
  Result<StoreAnswer> call(const StoreRequest& request, TimePoint deadline) {
    Bytes frame;
    encode_store_request(request, frame);
    Duration backoff = kFirstBackoff;
    while (true) {
      UniqueFd fd = borrow_idle();
      const bool is_fresh = !fd.valid();
      if (is_fresh) {
        auto connected = connect(deadline);
        if (!connected.ok()) {
          return about(request, connected.status());
        }
        fd = std::move(connected).value();
      }
      std::optional<StoreAnswer> answer;
      const auto io = exchange(fd.get(), frame, deadline, answer);
      if (!io.ok()) {
        return about(request, io.status());
      }
      if (answer) {
        give_back(std::move(fd));
        return check(request, std::move(*answer));
      }
      const TimePoint now = Clock::system().now();
      if (io.value() == Io::kLate || now >= deadline) {
        return late(request, io.value());
      }
      if (is_fresh) {  // An idle connection may have been dead for long; a new one should not be.
        (void)::poll(nullptr, 0, milliseconds_until(std::min(deadline, now + backoff), now));
        backoff = std::min(2 * backoff, kLongestBackoff);
      }
    }
  }

  Result<UniqueFd> connect(TimePoint deadline) const {
    LIGHTCC_ASSIGN_OR_RETURN(const SocketAddress address, SocketAddress::resolve(server_));
    const auto hello = as_bytes(kStoreHello);
    return connect_authenticated(
        address, secret_, Bytes(hello.begin(), hello.end()), deadline, /*retry_refused=*/true);
  }

  /// One request and its answer; without an answer, why. Error: the server does not keep the
  /// protocol.
  static Result<Io> exchange(int fd,
                             const Bytes& frame,
                             TimePoint deadline,
                             std::optional<StoreAnswer>& answer) {
    if (const Io io = send_all(fd, frame, deadline); io != Io::kDone) {
      return io;
    }
    Bytes in;
    if (const Io io = receive_all(fd, in, kStoreFrameHeadBytes, deadline); io != Io::kDone) {
      return io;
    }
    LIGHTCC_ASSIGN_OR_RETURN(const std::size_t body_bytes, decode_store_body_bytes(in));
    in.clear();
    if (const Io io = receive_all(fd, in, body_bytes, deadline); io != Io::kDone) {
      return io;
    }
    LIGHTCC_ASSIGN_OR_RETURN(answer, decode_store_answer(in));
    return Io::kDone;
  }

  Result<StoreAnswer> check(const StoreRequest& request, StoreAnswer answer) const {
    if (answer.kind == StoreAnswer::Kind::kRefused) {
      return Status(answer.code, std::move(answer.text));
    }
    const auto expected = request.kind == StoreRequest::Kind::kGet ? StoreAnswer::Kind::kValue
                                                                   : StoreAnswer::Kind::kDone;
    if (answer.kind != expected) {
      return make_error(ErrorCode::kPeerFailed,
                        "the store at %s gave an answer to another question",
                        server_.c_str());
    }
    return answer;
  }

  Status late(const StoreRequest& request, Io io) const {
    if (io == Io::kLost) {
      return make_error(
          ErrorCode::kTimeout,
          "key '%s': the connection to the store at %s kept breaking until the deadline",
          request.key.c_str(),
          server_.c_str());
    }
    return make_error(ErrorCode::kTimeout,
                      request.kind == StoreRequest::Kind::kGet
                          ? "key '%s' was not set in the store at %s before the deadline"
                          : "key '%s': the store at %s did not answer before the deadline",
                      request.key.c_str(),
                      server_.c_str());
  }

  static Status about(const StoreRequest& request, const Status& status) {
    return {status.code(), "store key '" + request.key + "': " + status.message()};
  }

  UniqueFd borrow_idle() {
    const MutexLock lock(mutex_);
    if (idle_.empty()) {
      return {};
    }
    UniqueFd fd = std::move(idle_.back());
    idle_.pop_back();
    return fd;
  }

  void give_back(UniqueFd fd) {
    const MutexLock lock(mutex_);
    if (idle_.size() < kMaxIdleConnections) {
      idle_.push_back(std::move(fd));
    }
  }

  const std::string server_;
  const std::string secret_;
  Mutex mutex_;
  std::vector<UniqueFd> idle_ LIGHTCC_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Store> make_tcp_store(std::string host_and_port, std::string secret) {
  return std::make_unique<TcpStore>(std::move(host_and_port), std::move(secret));
}

}  // namespace lightcc
