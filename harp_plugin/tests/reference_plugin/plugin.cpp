// reftcp itself: devices, connections under way, listeners.
#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

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

struct Settings {
  std::string interfaces;
  int sockets = 1;
  int max_recvs = harp::plugin::kMaxGroupedReceives;
  int peer_timeout_s = 30;
};

int number_from(const char* name, int otherwise, int minimum, int maximum) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): once, at the start
  return text != nullptr ? std::clamp(std::atoi(text), minimum, maximum) : otherwise;  // NOLINT
}

Settings read_settings() {
  Settings settings;
  const char* names = std::getenv("REFTCP_IFNAME");  // NOLINT(concurrency-mt-unsafe)
  settings.interfaces = names != nullptr ? names : "";
  settings.sockets = number_from("REFTCP_SOCKETS", 1, 1, kMostSockets);
  settings.max_recvs = number_from("REFTCP_MAX_RECVS", settings.max_recvs, 1, settings.max_recvs);
  settings.peer_timeout_s = number_from("REFTCP_PEER_TIMEOUT", 30, 1, 3600);
  return settings;
}

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

/// A connection on its way: sockets that connect and greet, each at its own pace.
class Connecting {
 public:
  Connecting(const Invitation& peer, int peer_timeout_s)
      : peer_(peer), peer_timeout_s_(peer_timeout_s) {
    fill_randomly(&comm_id_);
  }

  /// Opens the sockets.
  Result start(const Address& source) {
    for (std::uint16_t i = 0; i < peer_.sockets; ++i) {
      Greeter greeter;
      greeter.fd = start_to_connect(source, peer_.to_address(), peer_timeout_s_);
      if (!greeter.fd.is_open()) {
        return fail_with_errno("connect", "cannot connect to the peer");
      }
      greeter.greeting =
          Greeting{.index = i, .sockets = peer_.sockets, .comm = comm_id_, .secret = peer_.secret};
      greeters_.push_back(std::move(greeter));
    }
    return Result::kSuccess;
  }

  Result advance(bool* done) {
    *done = true;
    for (Greeter& greeter : greeters_) {
      if (greeter.sent_bytes == sizeof(Greeting)) {
        continue;
      }
      *done = false;
      pollfd entry{greeter.fd.get(), POLLOUT, 0};
      if (::poll(&entry, 1, 0) != 1) {
        continue;
      }
      socklen_t length = sizeof(errno);
      int error = 0;
      (void)::getsockopt(greeter.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) {
        errno = error;
        return fail_with_errno("connect", "cannot connect to the peer");
      }
      const auto rest = bytes_of(greeter.greeting).subspan(greeter.sent_bytes);
      const ssize_t count = ::send(greeter.fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (count < 0 && !would_block(errno)) {
        return fail_with_errno("connect", "the peer hung up");
      }
      greeter.sent_bytes += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    }
    if (!*done && Clock::now() - started_ > std::chrono::seconds(peer_timeout_s_)) {
      log(LogLevel::kWarn, "connect", "the peer does not answer");
      return Result::kRemoteError;
    }
    return Result::kSuccess;
  }

  std::vector<UniqueFd> take_sockets() {
    std::vector<UniqueFd> sockets;
    sockets.reserve(greeters_.size());
    for (Greeter& greeter : greeters_) {
      sockets.push_back(std::move(greeter.fd));
    }
    return sockets;
  }

 private:
  struct Greeter {
    UniqueFd fd;
    Greeting greeting;
    std::size_t sent_bytes = 0;
  };
  Invitation peer_;
  int peer_timeout_s_;
  std::uint64_t comm_id_ = 0;
  std::vector<Greeter> greeters_;
  Clock::time_point started_ = Clock::now();
};

/// Newcomers are sorted by the comm that their greeting names; a comm is there when all its sockets
/// are.
class TcpListenComm final : public harp::plugin::ListenComm {
 public:
  TcpListenComm(UniqueFd fd, const Invitation& invitation, const Settings& settings)
      : fd_(std::move(fd)), invitation_(invitation), settings_(settings) {}

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
    for (auto entry = comms_.begin(); entry != comms_.end(); ++entry) {
      if (std::ranges::all_of(entry->second, &UniqueFd::is_open)) {
        *comm = std::make_unique<TcpRecvComm>(std::move(entry->second), settings_.max_recvs);
        comms_.erase(entry);
        break;
      }
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

  /// True when the newcomer has gone where it belongs, or away.
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
    if (greeting.magic != kMagic || greeting.secret != invitation_.secret ||
        greeting.sockets != invitation_.sockets || greeting.index >= greeting.sockets) {
      log(LogLevel::kInfo, "accept", "a stranger was turned away");
      return true;
    }
    std::vector<UniqueFd>& sockets = comms_[greeting.comm];
    sockets.resize(greeting.sockets);
    tune(newcomer->fd.get(), settings_.peer_timeout_s);
    sockets[greeting.index] = std::move(newcomer->fd);
    return true;
  }

  UniqueFd fd_;
  Invitation invitation_;
  Settings settings_;
  std::vector<Newcomer> newcomers_;
  std::map<std::uint64_t, std::vector<UniqueFd>> comms_;
};

class TcpContext final : public harp::plugin::Context {
 public:
  TcpContext(const Settings& settings, const std::vector<Interface>& interfaces)
      : settings_(settings), interfaces_(interfaces) {}

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
    invitation.sockets = static_cast<std::uint16_t>(settings_.sockets);
    fill_randomly(&invitation.listener);
    fill_randomly(&invitation.secret);
    *handle = invitation.encode();
    *comm = std::make_unique<TcpListenComm>(std::move(fd), invitation, settings_);
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
      Connecting connecting(invitation, settings_.peer_timeout_s);
      const Result result = connecting.start(interface->address);
      if (result != Result::kSuccess) {
        return result;
      }
      entry = under_way_.emplace(handle, std::move(connecting)).first;
    }
    bool done = false;
    const Result result = entry->second.advance(&done);
    if (done) {
      *comm = std::make_unique<TcpSendComm>(entry->second.take_sockets());
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

  const Settings& settings_;
  const std::vector<Interface>& interfaces_;
  harp::Mutex mutex_;
  std::map<Handle, Connecting> under_way_ HARP_GUARDED_BY(mutex_);
};

class TcpNet final : public harp::plugin::Net {
 public:
  Result make_context(const harp::plugin::ContextOptions& /*options*/,
                      std::unique_ptr<harp::plugin::Context>* context) override {
    if (interfaces_.empty()) {
      log(LogLevel::kWarn,
          "init",
          "no interface is up (REFTCP_IFNAME: %s)",
          settings_.interfaces.c_str());
      return Result::kSystemError;
    }
    *context = std::make_unique<TcpContext>(settings_, interfaces_);
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
         .max_recvs = settings_.max_recvs});
    return Result::kSuccess;
  }

 private:
  Settings settings_ = read_settings();
  std::vector<Interface> interfaces_ = find_interfaces(settings_.interfaces);
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
