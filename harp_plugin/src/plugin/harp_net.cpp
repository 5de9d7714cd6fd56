// libnccl-net-harp: HARP as NCCL's network.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "abi/harp.h"
#include "abi/properties.hpp"
#include "abi/types.hpp"
#include "endpoint/connection.hpp"
#include "endpoint/datapath_maker.hpp"
#include "endpoint/interfaces.hpp"
#include "endpoint/network.hpp"
#include "endpoint/profile.hpp"
#include "endpoint/settings.hpp"
#include "plugin/core.hpp"
#include "plugin/guard.hpp"
#include "plugin/host_device.hpp"
#include "protocol/handle.hpp"
#include "protocol/types.hpp"
#include "runtime/channel.hpp"
#include "sync/mutex.hpp"

namespace harp::plugin {
namespace {

static_assert(kMaxMessageBytes == std::size_t{1} << 30, "what properties_of() promises");

using abi::LogLevel;

Result result_of(SessionError error) {
  switch (error) {
    case SessionError::kNone:
      return Result::kSuccess;
    case SessionError::kMessageTooLong:
      return Result::kInvalidUsage;
    case SessionError::kPeerTimeout:
    case SessionError::kNoProgress:
    case SessionError::kConnectTimeout:
    case SessionError::kPeerClosed:
    case SessionError::kProtocolViolation:
      return Result::kRemoteError;
    case SessionError::kCancelled:
      break;
  }
  return Result::kInternalError;
}

/// What both kinds of data comm do alike: requests over one connection.
template <typename Base>
class HarpComm : public Base {
 public:
  explicit HarpComm(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      requests_[i].comm = this;
      requests_[i].id = static_cast<RequestId>(i);
    }
  }

  HarpComm(const HarpComm&) = delete;
  HarpComm& operator=(const HarpComm&) = delete;
  ~HarpComm() override {
    for (const std::string& line : connection_->describe_close()) {
      log(LogLevel::kInfo, "close", "%s", line.c_str());
    }
  }

  /// Any memory will do.
  Result reg_mr(void* /*data*/, std::size_t /*bytes*/, int type, void** mr) override {
    const Result result = check_host_memory(type);
    if (result == Result::kSuccess) {
      *mr = this;
    }
    return result;
  }
  Result dereg_mr(void* /*mr*/) override { return Result::kSuccess; }
  Result progress() {
    (void)connection_->poll();
    return Result::kSuccess;
  }

 protected:
  struct Operation final : Request {
    Result test(bool* done, int* bytes) override { return comm->test(*this, done, bytes); }

    HarpComm* comm = nullptr;
    RequestId id = 0;
    std::size_t sent_bytes = 0;
    bool is_send = false;
  };

  /// Hands out the operation of a post, or nothing where there was none.
  Result start(std::optional<RequestId> posted, bool is_send, std::size_t bytes, Request** out) {
    if (!posted) {
      return connection_->life() == Channel::Life::kEnded ? fail(connection_->error())
                                                          : Result::kSuccess;
    }
    Operation& operation = requests_[*posted];
    operation.is_send = is_send;
    operation.sent_bytes = bytes;
    *out = &operation;
    return Result::kSuccess;
  }

  Connection& connection() { return *connection_; }

 private:
  Result test(const Operation& operation, bool* done, int* bytes) {
    const auto completion = connection_->test(operation.id);
    *done = completion.has_value();
    if (!completion) {
      return Result::kSuccess;
    }
    if (completion->error != SessionError::kNone) {
      return fail(completion->error);
    }
    if (bytes != nullptr) {
      *bytes = static_cast<int>(operation.is_send ? operation.sent_bytes : completion->bytes);
    }
    return Result::kSuccess;
  }

  Result fail(SessionError error) {
    if (!std::exchange(has_failed_, true)) {
      log(LogLevel::kWarn,
          this->kind() == CommKind::kSend ? "send" : "receive",
          "%s",
          session_error_name(error));
    }
    return result_of(error);
  }

  std::unique_ptr<Connection> connection_;
  std::array<Operation, Channel::kRequests> requests_;
  bool has_failed_ = false;
};

class HarpSendComm final : public HarpComm<SendComm> {
 public:
  using HarpComm::HarpComm;
  HarpSendComm(const HarpSendComm&) = delete;
  HarpSendComm& operator=(const HarpSendComm&) = delete;
  ~HarpSendComm() override {
    const MutexLock lock(mutex_);
    for (const auto& [memory, times] : registered_) {
      connection().deregister_memory({memory.first, memory.second});
    }
  }

  /// The NIC may read it in place.
  Result reg_mr(void* data, std::size_t bytes, int type, void** mr) override {
    const Result result = check_host_memory(type);
    if (result == Result::kSuccess) {
      const MutexLock lock(mutex_);
      const auto [found, is_new] =
          registered_.try_emplace({static_cast<const std::byte*>(data), bytes}, 0);
      ++found->second;
      if (is_new) {
        connection().register_memory({found->first.first, bytes});
      }
      *mr = const_cast<Memory*>(&found->first);  // NOLINT(*-const-cast): comes back untouched
    }
    return result;
  }
  Result dereg_mr(void* mr) override {
    const MutexLock lock(mutex_);
    const auto found =
        std::ranges::find_if(registered_, [mr](const auto& one) { return &one.first == mr; });
    if (found == registered_.end()) {
      log(LogLevel::kWarn, "deregMr", "no registration of this comm");
      return Result::kInvalidArgument;
    }
    if (--found->second == 0) {
      connection().deregister_memory({found->first.first, found->first.second});
      registered_.erase(found);
    }
    return Result::kSuccess;
  }
  Result isend(
      const void* data, std::size_t bytes, int tag, void* /*mr*/, Request** request) override {
    if (bytes > kMaxMessageBytes) {
      log(LogLevel::kWarn, "isend", "%zu bytes: at most %zu", bytes, kMaxMessageBytes);
      return Result::kInvalidArgument;
    }
    const std::span message(static_cast<const std::byte*>(data), bytes);
    return start(connection().send(message, static_cast<std::uint16_t>(tag)), true, bytes, request);
  }

 private:
  using Memory = std::pair<const std::byte*, std::size_t>;

  /// NCCL registers from one thread while another one sends.
  Mutex mutex_;
  std::map<Memory, std::size_t> registered_ HARP_GUARDED_BY(mutex_);  ///< How many times.
};

class HarpRecvComm final : public HarpComm<RecvComm> {
 public:
  using HarpComm::HarpComm;
  Result irecv(std::span<const RecvBuffer> buffers, Request** request) override {
    if (buffers.size() != 1) {
      log(LogLevel::kWarn, "irecv", "%zu buffers: maxRecvs is 1", buffers.size());
      return Result::kInvalidArgument;
    }
    const RecvBuffer& buffer = buffers.front();
    const std::span<std::byte> room(static_cast<std::byte*>(buffer.data), buffer.bytes);
    return start(connection().receive(room), false, 0, request);
  }
  Result iflush(std::span<const RecvBuffer> /*buffers*/, Request** request) override {
    *request = nullptr;  // Host memory is visible as it is.
    return Result::kSuccess;
  }
  Result irecv_take(const Taker& taker, Request** request) {
    return start(connection().receive_taken(taker), false, 0, request);
  }
};

class HarpListenComm final : public ListenComm {
 public:
  explicit HarpListenComm(std::unique_ptr<Acceptor> acceptor) : acceptor_(std::move(acceptor)) {}
  Result accept(std::unique_ptr<RecvComm>* comm) override {
    if (auto connection = acceptor_->accept()) {
      *comm = std::make_unique<HarpRecvComm>(std::move(connection));
    }
    return Result::kSuccess;
  }

 private:
  std::unique_ptr<Acceptor> acceptor_;
};

class HarpContext final : public Context {
 public:
  explicit HarpContext(Network& network) : network_(network) {}

  Result listen(int device, Handle* handle, std::unique_ptr<ListenComm>* comm) override {
    if (!has_device(device)) {
      return Result::kInvalidArgument;
    }
    Network::Listening listening = network_.listen(static_cast<std::size_t>(device));
    const auto bytes = encode_handle(listening.handle);
    static_assert(bytes.size() <= std::tuple_size_v<Handle>);
    handle->fill(std::byte{0});
    std::ranges::copy(bytes, handle->begin());
    *comm = std::make_unique<HarpListenComm>(std::move(listening.acceptor));
    return Result::kSuccess;
  }

  // A connection under way is found again by the handle's bytes, so that it does not matter where
  // the caller keeps them. Two callers with one handle share what is under way and each get a comm.
  Result connect(int device, const Handle& handle, std::unique_ptr<SendComm>* comm) override {
    const auto peer = parse_handle(std::span(handle).first<kHandleBytes>());
    if (!has_device(device) || !peer) {
      log(LogLevel::kWarn, "connect", "not a device of ours, or not a handle of ours");
      return Result::kInvalidArgument;
    }
    const MutexLock lock(mutex_);
    std::unique_ptr<Connection>& connection = under_way_[handle];
    if (connection == nullptr) {
      connection = network_.connect(static_cast<std::size_t>(device), *peer);
    }
    switch (connection->poll()) {
      case Channel::Life::kConnecting:
        return Result::kSuccess;
      case Channel::Life::kOpen:
        *comm = std::make_unique<HarpSendComm>(std::move(connection));
        under_way_.erase(handle);
        return Result::kSuccess;
      case Channel::Life::kEnded:
        break;
    }
    const SessionError error = connection->error();
    under_way_.erase(handle);
    log(LogLevel::kWarn, "connect", "%s", session_error_name(error));
    return result_of(error);
  }

 private:
  bool has_device(int device) const {
    return device >= 0 && static_cast<std::size_t>(device) < network_.devices().size();
  }

  Network& network_;
  Mutex mutex_;
  std::map<Handle, std::unique_ptr<Connection>> under_way_ HARP_GUARDED_BY(mutex_);
};

class HarpNet final : public Net {
 public:
  HarpNet() {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): once, before the first connection
    const GetVariable get = [](const char* name) { return std::getenv(name); };
    const auto profile = Profile::load(get, kProfilePath, &why_);
    const auto settings = profile ? read_settings(get, *profile, &why_) : std::nullopt;
    if (!settings) {
      return;
    }
    profile_ = profile->description();
    auto interfaces = find_devices(*settings);
    if (interfaces.empty()) {
      why_ = "no interface is up and has an address (HARP_IFNAME: '" + settings->interfaces + "')";
      return;
    }
    network_.emplace(*settings, std::move(interfaces), [](const std::string& text) {
      log(LogLevel::kInfo, "stat", "%s", text.c_str());
    });
  }

  Result make_context(const ContextOptions& /*options*/,
                      std::unique_ptr<Context>* context) override {
    if (!network_) {
      log(LogLevel::kWarn, "init", "%s", why_.c_str());
      return Result::kInvalidUsage;
    }
    log(LogLevel::kInfo, "init", "%s", profile_.c_str());
    log(LogLevel::kInfo, "init", "%s", network_->description().c_str());
    *context = std::make_unique<HarpContext>(*network_);
    return Result::kSuccess;
  }

  Result devices(int* count) override {
    *count = network_ ? static_cast<int>(network_->devices().size()) : 0;
    return Result::kSuccess;
  }

  Result properties(int device, abi::PropertiesV12* properties) override {
    const auto index = static_cast<std::size_t>(device);
    if (!network_ || device < 0 || index >= network_->devices().size()) {
      return Result::kInvalidArgument;
    }
    const Interface& one = network_->devices()[index];
    *properties = properties_of({.index = device,
                                 .name = one.name.c_str(),
                                 .pci_path = one.pci_path.empty() ? nullptr : one.pci_path.c_str(),
                                 .speed_mbps = one.speed_mbps,
                                 .max_comms = static_cast<int>(network_->max_connections()),
                                 .max_recvs = 1});
    return Result::kSuccess;
  }

 private:
  std::string why_;      ///< There is no network.
  std::string profile_;  ///< What was read.
  std::optional<Network> network_;
};

}  // namespace

const char kPluginName[] = "HARP";  // NOLINT(modernize-avoid-c-arrays): see core.hpp

Net& net() {
  static auto* const kNet = new HarpNet();
  return *kNet;
}

}  // namespace harp::plugin

/// See abi/harp.h.
extern "C" __attribute__((visibility("default"))) int harp_irecv_take(
    void* recv_comm, std::size_t bytes, harp_take_fn take, void* context, void** request) {
  using namespace harp::plugin;  // NOLINT(google-build-using-namespace): it belongs there
  return static_cast<int>(guard("harp_irecv_take", [&] {
    auto* const comm = static_cast<Comm*>(recv_comm);
    if (comm == nullptr || comm->kind() != CommKind::kRecv || take == nullptr ||
        request == nullptr) {
      log(LogLevel::kWarn, "harp_irecv_take", "not a comm that receives, or a null argument");
      return Result::kInvalidArgument;
    }
    *request = nullptr;
    Request* started = nullptr;
    const harp::Taker taker{.take = take, .context = context, .max_bytes = bytes};
    const Result result = static_cast<HarpRecvComm*>(comm)->irecv_take(taker, &started);
    *request = started;
    return result;
  }));
}

/// See abi/harp.h.
extern "C" __attribute__((visibility("default"))) int harp_progress(void* any_comm) {
  using namespace harp::plugin;  // NOLINT(google-build-using-namespace): it belongs there
  return static_cast<int>(guard("harp_progress", [&] {
    auto* const comm = static_cast<Comm*>(any_comm);
    if (comm != nullptr && comm->kind() == CommKind::kSend) {
      return static_cast<HarpSendComm*>(comm)->progress();
    }
    if (comm != nullptr && comm->kind() == CommKind::kRecv) {
      return static_cast<HarpRecvComm*>(comm)->progress();
    }
    log(LogLevel::kWarn, "harp_progress", "not a comm that sends or receives");
    return Result::kInvalidArgument;
  }));
}
