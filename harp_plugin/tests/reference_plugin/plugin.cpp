// reftcp itself: devices, connections under way, listeners.
#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "comms.hpp"
#include "plugin/core.hpp"
#include "plugin/guard.hpp"
#include "plugin/host_device.hpp"
#include "socket.hpp"
#include "sync/mutex.hpp"
#include "wire.hpp"

namespace reftcp {
namespace {

using harp::abi::LogLevel;
using harp::plugin::Handle;
using harp::plugin::log;
using Clock = std::chrono::steady_clock;

template <typename T>
void fill_randomly(T* object) {
  auto rest = bytes_of(*object);
  while (!rest.empty()) {
    const ssize_t count = ::getrandom(rest.data(), rest.size(), 0);
    if (count > 0) {
      rest = rest.subspan(static_cast<std::size_t>(count));
    }
  }
}

Result fail_with_errno(const char* where, const char* what) {
  const int error = errno;
  std::array<char, 128> text{};
  log(LogLevel::kWarn, where, "%s: %s", what, ::strerror_r(error, text.data(), text.size()));
  return error == ECONNREFUSED || error == ECONNRESET || error == EHOSTUNREACH || error == ETIMEDOUT
             ? Result::kRemoteError
             : Result::kSystemError;
}

/// A connection on its way: a socket that connects and greets.
class Connecting {
 public:
  explicit Connecting(const Invitation& peer) : peer_(peer), greeting_{.secret = peer.secret} {}

  /// Opens the socket.
  Result start(const Address& source) {
    fd_ = start_to_connect(source, peer_.to_address());
    return fd_.is_open() ? Result::kSuccess
                         : fail_with_errno("connect", "cannot connect to the peer");
  }

  Result advance(bool* done) {
    pollfd entry{fd_.get(), POLLOUT, 0};
    if (::poll(&entry, 1, 0) == 1) {
      socklen_t length = sizeof(errno);
      int error = 0;
      (void)::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) {
        errno = error;
        return fail_with_errno("connect", "cannot connect to the peer");
      }
      const auto rest = bytes_of(greeting_).subspan(sent_bytes_);
      const ssize_t count = ::send(fd_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (count < 0 && !would_block(errno)) {
        return fail_with_errno("connect", "the peer hung up");
      }
      sent_bytes_ += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    }
    *done = sent_bytes_ == sizeof(Greeting);
    if (!*done && Clock::now() - started_ > std::chrono::seconds(kPeerTimeoutS)) {
      log(LogLevel::kWarn, "connect", "the peer does not answer");
      return Result::kRemoteError;
    }
    return Result::kSuccess;
  }

  UniqueFd take_socket() { return std::move(fd_); }

 private:
  Invitation peer_;
  Greeting greeting_;
  UniqueFd fd_;
  std::size_t sent_bytes_ = 0;
  Clock::time_point started_ = Clock::now();
};

/// Who connects is a newcomer until its greeting has come.
class TcpListenComm final : public harp::plugin::ListenComm {
 public:
  TcpListenComm(UniqueFd fd, const Invitation& invitation)
      : fd_(std::move(fd)), invitation_(invitation) {}

  Result accept(std::unique_ptr<harp::plugin::RecvComm>* comm) override {
    while (newcomers_.size() < kMostNewcomers) {
      UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.is_open()) {
        if (errno == EMFILE || errno == ENFILE) {
          return fail_with_errno("accept", "cannot take the peer's connection");
        }
        break;  // Nobody there, or somebody who left again.
      }
      newcomers_.push_back({std::move(fd), {}, 0, Clock::now()});
    }
    std::erase_if(newcomers_, [&](Newcomer& newcomer) { return settle(&newcomer); });
    if (!greeted_.empty()) {
      *comm = std::make_unique<TcpRecvComm>(std::move(greeted_.front()));
      greeted_.pop_front();
    }
    return Result::kSuccess;
  }

 private:
  static constexpr std::size_t kMostNewcomers = 512;
  static constexpr auto kPatience = std::chrono::seconds(10);

  struct Newcomer {
    UniqueFd fd;
    Greeting greeting;
    std::size_t read_bytes;
    Clock::time_point since;
  };

  /// True when the newcomer has greeted, or is sent away.
  bool settle(Newcomer* newcomer) {
    const auto rest = bytes_of(newcomer->greeting).subspan(newcomer->read_bytes);
    const ssize_t count = ::recv(newcomer->fd.get(), rest.data(), rest.size(), 0);
    if (count == 0 || (count < 0 && !would_block(errno))) {
      return true;
    }
    newcomer->read_bytes += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    if (newcomer->read_bytes < sizeof(Greeting)) {
      return Clock::now() - newcomer->since > kPatience;
    }
    const Greeting& greeting = newcomer->greeting;
    if (greeting.magic != kMagic || greeting.secret != invitation_.secret) {
      log(LogLevel::kInfo, "accept", "a stranger was turned away");
      return true;
    }
    tune(newcomer->fd.get());
    greeted_.push_back(std::move(newcomer->fd));
    return true;
  }

  UniqueFd fd_;
  Invitation invitation_;
  std::vector<Newcomer> newcomers_;
  std::deque<UniqueFd> greeted_;
};

class TcpContext final : public harp::plugin::Context {
 public:
  explicit TcpContext(const std::vector<Interface>& interfaces) : interfaces_(interfaces) {}

  Result listen(int device,
                Handle* handle,
                std::unique_ptr<harp::plugin::ListenComm>* comm) override {
    const Interface* interface = find(device);
    if (interface == nullptr) {
      return Result::kInvalidArgument;
    }
    UniqueFd fd = listen_at(interface->address);
    Address where;
    where.bytes = sizeof(where.storage);
    if (!fd.is_open() ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&where.storage), &where.bytes) != 0) {
      return fail_with_errno("listen", "cannot listen");
    }
    Invitation invitation;
    invitation.set_address(where);
    fill_randomly(&invitation.secret);
    *handle = invitation.encode();
    *comm = std::make_unique<TcpListenComm>(std::move(fd), invitation);
    return Result::kSuccess;
  }

  // A connection under way is found again by the handle's bytes, so that it does not matter where
  // the caller keeps them. Two callers with one handle share what is under way and each get a comm.
  Result connect(int device,
                 const Handle& handle,
                 std::unique_ptr<harp::plugin::SendComm>* comm) override {
    const Interface* interface = find(device);
    Invitation invitation;
    if (interface == nullptr || !invitation.decode(handle)) {
      log(LogLevel::kWarn, "connect", "not a device of ours, or not a handle of ours");
      return Result::kInvalidArgument;
    }
    const harp::MutexLock lock(mutex_);
    auto entry = under_way_.find(handle);
    if (entry == under_way_.end()) {
      Connecting connecting(invitation);
      const Result result = connecting.start(interface->address);
      if (result != Result::kSuccess) {
        return result;
      }
      entry = under_way_.emplace(handle, std::move(connecting)).first;
    }
    bool done = false;
    const Result result = entry->second.advance(&done);
    if (done) {
      *comm = std::make_unique<TcpSendComm>(entry->second.take_socket());
    }
    if (done || result != Result::kSuccess) {
      under_way_.erase(entry);
    }
    return result;
  }

 private:
  const Interface* find(int device) const {
    const auto index = static_cast<std::size_t>(device);
    return device >= 0 && index < interfaces_.size() ? &interfaces_[index] : nullptr;
  }

  const std::vector<Interface>& interfaces_;
  harp::Mutex mutex_;
  std::map<Handle, Connecting> under_way_ HARP_GUARDED_BY(mutex_);
};

class TcpNet final : public harp::plugin::Net {
 public:
  Result make_context(const harp::plugin::ContextOptions& /*options*/,
                      std::unique_ptr<harp::plugin::Context>* context) override {
    if (interfaces_.empty()) {
      log(LogLevel::kWarn, "init", "no interface is up (REFTCP_IFNAME: %s)", wanted_.c_str());
      return Result::kSystemError;
    }
    *context = std::make_unique<TcpContext>(interfaces_);
    return Result::kSuccess;
  }

  Result devices(int* count) override {
    *count = static_cast<int>(interfaces_.size());
    return Result::kSuccess;
  }

  Result properties(int device, harp::abi::PropertiesV12* properties) override {
    const auto index = static_cast<std::size_t>(device);
    if (device < 0 || index >= interfaces_.size()) {
      return Result::kInvalidArgument;
    }
    const Interface& one = interfaces_[index];
    *properties = harp::plugin::properties_of(
        {.index = device,
         .name = one.name.data(),
         .pci_path = one.pci_path.empty() ? nullptr : one.pci_path.data(),
         .speed_mbps = one.speed_mbps,
         .max_recvs = harp::plugin::kMaxGroupedReceives});
    return Result::kSuccess;
  }

 private:
  /// What the constructor reads, before there are other threads.
  static std::string read_wanted() {
    const char* names = std::getenv("REFTCP_IFNAME");  // NOLINT(concurrency-mt-unsafe)
    return names != nullptr ? names : "";
  }

  std::string wanted_ = read_wanted();
  std::vector<Interface> interfaces_ = find_interfaces(wanted_);
};

}  // namespace
}  // namespace reftcp

namespace harp::plugin {

const char kPluginName[] = "REFTCP";

Net& net() {
  static auto* const kNet = new reftcp::TcpNet();
  return *kNet;
}

}  // namespace harp::plugin
