// reftcp itself: devices, connections under way, listeners.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "comms.hpp"
#include "endpoint/interfaces.hpp"
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

Result fail_with_errno(const char* where, const char* what) {
  const int error = errno;
  std::array<char, 128> text{};
  log(LogLevel::kWarn, where, "%s: %s", what, ::strerror_r(error, text.data(), text.size()));
  return error == ECONNREFUSED || error == ECONNRESET || error == EHOSTUNREACH || error == ETIMEDOUT
             ? Result::kRemoteError
             : Result::kSystemError;
}

/// A connection on its way.
class Connecting {
 public:
  /// Opens the socket.
  Result start(const harp::Address& source, const harp::Address& peer) {
    fd_ = start_to_connect(source, peer);
    return fd_.is_open() ? Result::kSuccess
                         : fail_with_errno("connect", "cannot connect to the peer");
  }

  Result advance(bool* done) {
    pollfd entry{fd_.get(), POLLOUT, 0};
    *done = ::poll(&entry, 1, 0) == 1;
    if (*done) {
      socklen_t length = sizeof(errno);
      int error = 0;
      (void)::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) {
        *done = false;
        errno = error;
        return fail_with_errno("connect", "cannot connect to the peer");
      }
    } else if (Clock::now() - started_ > std::chrono::seconds(kPeerTimeoutS)) {
      log(LogLevel::kWarn, "connect", "the peer does not answer");
      return Result::kRemoteError;
    }
    return Result::kSuccess;
  }

  UniqueFd take_socket() { return std::move(fd_); }

 private:
  UniqueFd fd_;
  Clock::time_point started_ = Clock::now();
};

class TcpListenComm final : public harp::plugin::ListenComm {
 public:
  explicit TcpListenComm(UniqueFd fd) : fd_(std::move(fd)) {}

  Result accept(std::unique_ptr<harp::plugin::RecvComm>* comm) override {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.is_open()) {
      tune(fd.get());
      *comm = std::make_unique<TcpRecvComm>(std::move(fd));
    } else if (errno == EMFILE || errno == ENFILE) {
      return fail_with_errno("accept", "cannot take the peer's connection");
    }
    return Result::kSuccess;  // Or nobody is there, or somebody who left again.
  }

 private:
  UniqueFd fd_;
};

class TcpContext final : public harp::plugin::Context {
 public:
  explicit TcpContext(const std::vector<harp::Interface>& interfaces) : interfaces_(interfaces) {}

  Result listen(int device,
                Handle* handle,
                std::unique_ptr<harp::plugin::ListenComm>* comm) override {
    const harp::Interface* interface = find(device);
    if (interface == nullptr) {
      return Result::kInvalidArgument;
    }
    Invitation invitation{.address = interface->address};
    UniqueFd fd = listen_at(&invitation.address);
    if (!fd.is_open()) {
      return fail_with_errno("listen", "cannot listen");
    }
    *handle = invitation.encode();
    *comm = std::make_unique<TcpListenComm>(std::move(fd));
    return Result::kSuccess;
  }

  // A connection under way is found again by the handle's bytes, so that it does not matter where
  // the caller keeps them. Two callers with one handle share what is under way and each get a comm.
  Result connect(int device,
                 const Handle& handle,
                 std::unique_ptr<harp::plugin::SendComm>* comm) override {
    const harp::Interface* interface = find(device);
    Invitation invitation;
    if (interface == nullptr || !invitation.decode(handle)) {
      log(LogLevel::kWarn, "connect", "not a device of ours, or not a handle of ours");
      return Result::kInvalidArgument;
    }
    const harp::MutexLock lock(mutex_);
    auto entry = under_way_.find(handle);
    if (entry == under_way_.end()) {
      Connecting connecting;
      const Result result = connecting.start(interface->address, invitation.address);
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
  const harp::Interface* find(int device) const {
    const auto index = static_cast<std::size_t>(device);
    return device >= 0 && index < interfaces_.size() ? &interfaces_[index] : nullptr;
  }

  const std::vector<harp::Interface>& interfaces_;
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
    const harp::Interface& one = interfaces_[index];
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
  std::vector<harp::Interface> interfaces_ = harp::find_interfaces(wanted_);
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
