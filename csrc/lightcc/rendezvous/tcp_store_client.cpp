// The client of the TCP store.
//
// A call borrows a connection that nobody uses (or makes one), sends its request, reads the answer
// and puts the connection back; so a get that waits holds up nobody else. A connection whose answer
// did not come is closed, never put back. Requests may be repeated without harm, so a call whose
// connection breaks is made again on a new one until its deadline.
//
// A round has one connection of its own for all it asks, because the server takes the end of
// that connection for the end of the client.
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <utility>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/authenticated.hpp"
#include "lightcc/net/poller.hpp"
#include "lightcc/rendezvous/store_io.hpp"
#include "lightcc/rendezvous/tcp_store.hpp"
#include "lightcc/wire/store_messages.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kMaxIdleConnections = 4;
constexpr Duration kFirstBackoff = std::chrono::milliseconds(5);
constexpr Duration kLongestBackoff = std::chrono::milliseconds(200);

using Io = detail::StoreIo;

bool answers(StoreAnswer::Kind answer, StoreRequest::Kind request) {
  switch (request) {
    case StoreRequest::Kind::kGet:
    case StoreRequest::Kind::kGather:
      return answer == StoreAnswer::Kind::kValue;
    case StoreRequest::Kind::kCompareAndSet:
      return answer == StoreAnswer::Kind::kValue || answer == StoreAnswer::Kind::kAbsent;
    case StoreRequest::Kind::kWatch:
      return answer == StoreAnswer::Kind::kView;
    default:
      return answer == StoreAnswer::Kind::kDone;
  }
}

Result<StoreAnswer> checked(const StoreRequest& request,
                            StoreAnswer answer,
                            const std::string& server) {
  if (answer.kind == StoreAnswer::Kind::kRefused) {
    return Status(answer.code, std::move(answer.text));
  }
  if (!answers(answer.kind, request.kind)) {
    return make_error(ErrorCode::kPeerFailed,
                      "the store at %s gave an answer to another question",
                      server.c_str());
  }
  return answer;
}

class TcpStore;

/// One connection, which is the client's presence: it is never made again.
class TcpRound final : public RendezvousRound {
 public:
  TcpRound(TcpStore& store, std::string server, std::string prefix, UniqueFd fd)
      : store_(store), server_(std::move(server)), prefix_(std::move(prefix)), fd_(std::move(fd)) {}

  Status begin(const StoreRequest& request, TimePoint deadline) {
    return ask(request, deadline).status();
  }

  Status set(const std::string& key, std::vector<std::byte> value, TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(key));
    LIGHTCC_RETURN_IF_ERROR(check_store_value(value.size()));
    return ask({StoreRequest::Kind::kSet, key, std::move(value)}, deadline).status();
  }

  Result<std::vector<std::byte>> get(const std::string& key, TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(key));
    LIGHTCC_ASSIGN_OR_RETURN(StoreAnswer answer,
                             ask({StoreRequest::Kind::kGet, key, {}}, deadline));
    return std::move(answer.value);
  }

  Result<std::vector<std::byte>> gather(const std::string& key,
                                        std::uint32_t index,
                                        std::uint32_t count,
                                        std::vector<std::byte> share,
                                        TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(key));
    LIGHTCC_RETURN_IF_ERROR(check_store_share(share.size()));
    StoreRequest request{StoreRequest::Kind::kGather, key, std::move(share)};
    request.index = index;
    request.count = count;
    LIGHTCC_ASSIGN_OR_RETURN(StoreAnswer answer, ask(request, deadline));
    return std::move(answer.value);
  }

  int event_fd() const override { return fd_.get(); }

  Status failure(TimePoint deadline) override {
    while (failure_.ok()) {
      LIGHTCC_ASSIGN_OR_RETURN(const std::optional<StoreAnswer> answer, receive(deadline));
      if (!answer.has_value()) {
        break;  // Late. Any other frame answers a request that was given up.
      }
    }
    return failure_;
  }

  Status fail(const Status& why, TimePoint deadline) override;

  Status leave(bool last, TimePoint deadline) override {
    const auto kind = last ? StoreRequest::Kind::kLeaveLast : StoreRequest::Kind::kLeave;
    return ask({kind, prefix_, {}}, deadline).status();
  }

 private:
  Result<StoreAnswer> ask(const StoreRequest& request, TimePoint deadline) {
    if (!failure_.ok()) {
      return failure_;
    }
    if (owes_answer_) {
      return make_error(ErrorCode::kInternal, "a request after one that the store did not answer");
    }
    Bytes frame;
    encode_store_request(request, frame);
    if (const Io io = detail::send_to_store(fd_.get(), frame, deadline); io != Io::kDone) {
      // What was sent before it broke may be why.
      owes_answer_ = true;
      const Status why = failure(deadline);
      return why.ok() ? detail::late_answer(request, server_, false) : why;
    }
    owes_answer_ = true;
    LIGHTCC_ASSIGN_OR_RETURN(std::optional<StoreAnswer> answer, receive(deadline));
    if (!answer.has_value()) {
      return detail::late_answer(request, server_, false);
    }
    owes_answer_ = false;
    return checked(request, std::move(*answer), server_);
  }

  /// The next frame, or nothing until the deadline. A failure is remembered.
  Result<std::optional<StoreAnswer>> receive(TimePoint deadline) {
    Bytes body;
    LIGHTCC_ASSIGN_OR_RETURN(const Io io, inbox_.receive(fd_.get(), deadline, body));
    if (io == Io::kLate) {
      return std::optional<StoreAnswer>();
    }
    if (io == Io::kLost) {
      failure_ = make_error(ErrorCode::kPeerFailed,
                            "the store at %s is gone: the process that served it (the launcher, or "
                            "rank 0) has ended",
                            server_.c_str());
      return failure_;
    }
    LIGHTCC_ASSIGN_OR_RETURN(StoreAnswer answer, decode_store_answer(body));
    if (answer.kind == StoreAnswer::Kind::kFailed) {
      failure_ = decode_failure(answer.value);
      return failure_;
    }
    return std::optional(std::move(answer));
  }

  TcpStore& store_;
  const std::string server_;
  const std::string prefix_;
  UniqueFd fd_;
  detail::StoreInbox inbox_;
  bool owes_answer_ = false;  // So nothing more can be asked for over this connection.
  Status failure_;
};

class TcpStore final : public TcpStoreClient {
 public:
  TcpStore(std::string host_and_port, std::string secret)
      : server_(std::move(host_and_port)),
        secret_(std::move(secret)),
        stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void close() override {
    is_closed_ = true;
    if (stop_.valid()) {
      (void)::eventfd_write(stop_.get(), 1);  // Cannot fail: the counter is far from full.
    }
  }

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

  Result<std::optional<std::vector<std::byte>>> compare_and_set(
      const std::string& key,
      std::optional<std::vector<std::byte>> expected,
      std::vector<std::byte> desired,
      TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(key));
    LIGHTCC_RETURN_IF_ERROR(check_store_compare(desired.size()));
    LIGHTCC_RETURN_IF_ERROR(check_store_compare(expected.has_value() ? expected->size() : 0));
    StoreRequest request{StoreRequest::Kind::kCompareAndSet, key, std::move(desired)};
    request.expected = std::move(expected);
    LIGHTCC_ASSIGN_OR_RETURN(StoreAnswer answer, call(request, deadline));
    return answer.kind == StoreAnswer::Kind::kValue
               ? std::optional<std::vector<std::byte>>(std::move(answer.value))
               : std::nullopt;
  }

  Result<StoreView> watch(const std::string& prefix,
                          std::uint64_t known_state,
                          TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(prefix));
    StoreRequest request{StoreRequest::Kind::kWatch, prefix};
    request.known_state = known_state;
    LIGHTCC_ASSIGN_OR_RETURN(StoreAnswer answer, call(request, deadline));
    return std::move(answer.view);
  }

  Status fail(const std::string& prefix, const Status& why, TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(prefix));
    return call({StoreRequest::Kind::kFail, prefix, encode_failure(why)}, deadline).status();
  }

  Result<std::unique_ptr<RendezvousRound>> join(const std::string& prefix,
                                                const Status& last_will,
                                                TimePoint deadline) override {
    LIGHTCC_RETURN_IF_ERROR(check_store_key(prefix));
    const StoreRequest request{StoreRequest::Kind::kJoin, prefix, encode_failure(last_will)};
    auto connected = connect(deadline);
    if (!connected.ok()) {
      return about(request, connected.status());
    }
    auto round = std::make_unique<TcpRound>(*this, server_, prefix, std::move(connected).value());
    LIGHTCC_RETURN_IF_ERROR(round->begin(request, deadline));
    return std::unique_ptr<RendezvousRound>(std::move(round));
  }

 private:
  Result<StoreAnswer> call(const StoreRequest& request, TimePoint deadline) {
    Bytes frame;
    encode_store_request(request, frame);
    Duration backoff = kFirstBackoff;
    while (!is_closed_) {
      UniqueFd fd = borrow_idle();
      const bool is_fresh = !fd.valid();
      if (is_fresh) {
        auto connected = connect(deadline);
        if (!connected.ok()) {
          return is_closed_ ? closed(request) : about(request, connected.status());
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
        return checked(request, std::move(*answer), server_);
      }
      if (is_closed_) {
        return closed(request);
      }
      const TimePoint now = Clock::system().now();
      if (io.value() == Io::kLate || now >= deadline) {
        return detail::late_answer(request, server_, io.value() == Io::kLost);
      }
      if (is_fresh) {  // An idle connection may have been dead for long; a new one should not be.
        pollfd stop{stop_.get(), POLLIN, 0};
        (void)::poll(&stop, 1, milliseconds_until(std::min(deadline, now + backoff), now));
        backoff = std::min(2 * backoff, kLongestBackoff);
      }
    }
    return closed(request);
  }

  Result<UniqueFd> connect(TimePoint deadline) const {
    LIGHTCC_ASSIGN_OR_RETURN(const SocketAddress address, SocketAddress::resolve(server_));
    const auto hello = as_bytes(kStoreHello);
    return connect_authenticated(address,
                                 secret_,
                                 Bytes(hello.begin(), hello.end()),
                                 deadline,
                                 /*retry_refused=*/true,
                                 stop_.get());
  }

  /// One request and its answer; without an answer, why. Error: the server does not keep the
  /// protocol.
  Result<Io> exchange(int fd,
                      const Bytes& frame,
                      TimePoint deadline,
                      std::optional<StoreAnswer>& answer) const {
    if (const Io io = detail::send_to_store(fd, frame, deadline, stop_.get()); io != Io::kDone) {
      return io;
    }
    detail::StoreInbox inbox;
    Bytes in;
    LIGHTCC_ASSIGN_OR_RETURN(const Io io, inbox.receive(fd, deadline, in, stop_.get()));
    if (io != Io::kDone) {
      return io;
    }
    LIGHTCC_ASSIGN_OR_RETURN(answer, decode_store_answer(in));
    return Io::kDone;
  }

  static Status about(const StoreRequest& request, const Status& status) {
    return {status.code(), "store key '" + request.key + "': " + status.message()};
  }

  Status closed(const StoreRequest& request) const {
    return make_error(ErrorCode::kShutDown,
                      "store key '%s': the client of the store at %s was closed",
                      request.key.c_str(),
                      server_.c_str());
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
  const UniqueFd stop_;  // Readable when closed; invalid if there was no descriptor to be had.
  std::atomic<bool> is_closed_ = false;
  Mutex mutex_;
  std::vector<UniqueFd> idle_ LIGHTCC_GUARDED_BY(mutex_);
};

Status TcpRound::fail(const Status& why, TimePoint deadline) {
  const StoreRequest request{StoreRequest::Kind::kFail, prefix_, encode_failure(why)};
  if (failure_.ok() && owes_answer_) {
    (void)store_.fail(prefix_, why, deadline);
    (void)failure(deadline);  // The news comes here, too.
  } else if (failure_.ok()) {
    (void)ask(request, deadline);
  }
  return failure_.ok() ? why : failure_;
}

}  // namespace

std::unique_ptr<TcpStoreClient> make_tcp_store(std::string host_and_port, std::string secret) {
  return std::make_unique<TcpStore>(std::move(host_and_port), std::move(secret));
}

}  // namespace lightcc
