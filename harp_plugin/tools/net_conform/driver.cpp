#include "driver.hpp"

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "memory.hpp"
#include "report.hpp"
#include "watchdog.hpp"

namespace net_conform {
namespace {

using namespace harp::abi;

constexpr std::uintptr_t kLeftover = 0xdeadbeefdeadbeef;
constexpr int kLeftoverDone = 0x5a5a5a5a;

void* leftover() {
  return reinterpret_cast<void*>(kLeftover);  // NOLINT(performance-no-int-to-ptr)
}

/// NET_CONFORM_DEBUG=1 shows what a plugin logs.
void log_of_plugin(LogLevel level,
                   unsigned long /*flags*/,
                   const char* /*file*/,
                   int /*line*/,
                   const char* format,
                   ...) {
  static const bool kIsWanted = std::getenv("NET_CONFORM_DEBUG") != nullptr;  // NOLINT
  if (!kIsWanted || level > LogLevel::kInfo) {
    return;
  }
  std::array<char, 512> text{};
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "plugin: %s\n", text.data());
}

Result profile(void** event, int /*type*/, void* /*parent*/, std::int64_t /*id*/, void* /*extra*/) {
  if (event != nullptr) {
    *event = nullptr;
  }
  return Result::kSuccess;
}

/// Notes a slot that still holds the old value, and clears it, so that nobody follows it.
void check_slot(const char* rule, const char* entry, Result result, void** slot) {
  if (*slot == leftover()) {
    if (result == Result::kSuccess) {
      check(rule, false, "%s left the old value", entry);
    }
    *slot = nullptr;
  }
}

template <typename Table>
class DriverFor final : public Driver {
 public:
  DriverFor(int version, const Table& table) : version_(version), table_(table) {}

  int version() const override { return version_; }
  const char* name() const override { return table_.name; }

  std::string missing_entries() const override {
    std::string names;
    const auto look = [&](const char* name, const auto& entry) {
      if (entry == nullptr) {
        names += std::string(names.empty() ? "" : ", ") + name;
      }
    };
    look("init", table_.init);
    look("devices", table_.devices);
    look("getProperties", table_.get_properties);
    look("listen", table_.listen);
    look("connect", table_.connect);
    look("accept", table_.accept);
    look("regMr", table_.reg_mr);
    look("deregMr", table_.dereg_mr);
    look("isend", table_.isend);
    look("irecv", table_.irecv);
    look("iflush", table_.iflush);
    look("test", table_.test);
    look("closeSend", table_.close_send);
    look("closeRecv", table_.close_recv);
    look("closeListen", table_.close_listen);
    if constexpr (kSinceV11) {
      look("finalize", table_.finalize);
    }
    return names;
  }

  Result init(void** context) override {
    const CallScope call("init", false);
    if constexpr (kSinceV11) {
      CommConfig config{kTrafficClassUndefined};
      *context = leftover();
      const Result result = table_.init(context, 0x1234567890, &config, log_of_plugin, profile);
      check_slot("calls.comm-written", "init", result, context);
      return result;
    } else {
      *context = nullptr;
      if constexpr (std::is_same_v<decltype(table_.init), InitV10>) {
        return table_.init(log_of_plugin, profile);
      } else {
        return table_.init(log_of_plugin);
      }
    }
  }

  Result finalize(void* context) override {
    if constexpr (kSinceV11) {
      const CallScope call("finalize", false);
      return table_.finalize(context);
    } else {
      return Result::kSuccess;
    }
  }

  Result devices(int* count) override {
    const CallScope call("devices", false);
    *count = kLeftoverDone;
    return table_.devices(count);
  }

  Result get_properties(int device, PropertiesV12* properties) override {
    const PropertiesRoom room(0xAA);
    const CallScope call("getProperties", false);
    const Result result = table_.get_properties(device, room.get());
    if (result == Result::kSuccess) {
      *properties = widen(*room.get());
    }
    return result;
  }

  std::string unwritten_properties(int device) override {
    const PropertiesRoom first(0xAA);
    const PropertiesRoom second(0x55);
    const CallScope call("getProperties", false);
    if (table_.get_properties(device, first.get()) != Result::kSuccess ||
        table_.get_properties(device, second.get()) != Result::kSuccess) {
      return "an error";
    }
    std::string names;
    const auto look = [&](const char* name, const auto& one, const auto& other) {
      if (std::memcmp(&one, &other, sizeof(one)) != 0) {
        names += std::string(names.empty() ? "" : ", ") + name;
      }
    };
    const Properties& a = *first.get();
    const Properties& b = *second.get();
    look("name", a.name, b.name);
    look("pciPath", a.pci_path, b.pci_path);
    look("guid", a.guid, b.guid);
    look("ptrSupport", a.ptr_support, b.ptr_support);
    look("speed", a.speed_mbps, b.speed_mbps);
    look("port", a.port, b.port);
    look("maxComms", a.max_comms, b.max_comms);
    if constexpr (requires { a.max_recvs; }) {
      look("latency", a.latency_us, b.latency_us);
      look("maxRecvs", a.max_recvs, b.max_recvs);
    }
    if constexpr (requires { a.device_type; }) {
      look("netDeviceType", a.device_type, b.device_type);
      look("netDeviceVersion", a.device_version, b.device_version);
    }
    if constexpr (requires { a.reg_is_global; }) {
      look("regIsGlobal", a.reg_is_global, b.reg_is_global);
    }
    if constexpr (requires { a.parts; }) {
      look("forceFlush", a.force_flush, b.force_flush);
      look("vProps.ndevs", a.parts.count, b.parts.count);
      look("vProps.devs[0]", a.parts.devices[0], b.parts.devices[0]);
      look("maxP2pBytes", a.max_p2p_bytes, b.max_p2p_bytes);
      look("maxCollBytes", a.max_coll_bytes, b.max_coll_bytes);
    }
    if constexpr (requires { a.max_multi_request; }) {
      look("maxMultiRequestSize", a.max_multi_request, b.max_multi_request);
    }
    if constexpr (requires { a.rail; }) {
      look("railId", a.rail, b.rail);
      look("planeId", a.plane, b.plane);
    }
    return names;
  }

  Result listen(void* context, int device, void* handle, void** comm) override {
    const CallScope call("listen", false);
    *comm = leftover();
    Result result{};
    if constexpr (kSinceV11) {
      result = table_.listen(context, device, handle, comm);
    } else {
      result = table_.listen(device, handle, comm);
    }
    check_slot("calls.comm-written", "listen", result, comm);
    return result;
  }

  Result connect(void* context, int device, void* handle, void** comm) override {
    const CallScope call("connect", may_block());
    *comm = leftover();
    DeviceHandle* offload = nullptr;
    Result result{};
    if constexpr (kSinceV11) {
      result = table_.connect(context, device, handle, comm, &offload);
    } else if constexpr (std::is_same_v<decltype(table_.connect), ConnectV10>) {
      CommConfig config{kTrafficClassUndefined};
      result = table_.connect(device, &config, handle, comm, &offload);
    } else if constexpr (std::is_same_v<decltype(table_.connect), ConnectV7>) {
      result = table_.connect(device, handle, comm, &offload);
    } else {
      result = table_.connect(device, handle, comm);
    }
    check_slot("calls.comm-written", "connect", result, comm);
    return result;
  }

  Result accept(void* listen_comm, void** comm) override {
    const CallScope call("accept", may_block());
    *comm = leftover();
    DeviceHandle* offload = nullptr;
    Result result{};
    if constexpr (std::is_same_v<decltype(table_.accept), AcceptV7>) {
      result = table_.accept(listen_comm, comm, &offload);
    } else {
      result = table_.accept(listen_comm, comm);
    }
    check_slot("calls.comm-written", "accept", result, comm);
    return result;
  }

  Result reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mr) override {
    const CallScope call("regMr", false);
    *mr = nullptr;
    if constexpr (std::is_same_v<decltype(table_.reg_mr), RegMrV8>) {
      return table_.reg_mr(comm, data, bytes, type, mr);
    } else {
      return table_.reg_mr(comm, data, static_cast<int>(bytes), type, mr);
    }
  }

  Result dereg_mr(void* comm, void* mr) override {
    const CallScope call("deregMr", false);
    return table_.dereg_mr(comm, mr);
  }

  Result isend(
      void* comm, void* data, std::size_t bytes, int tag, void* mr, void** request) override {
    const CallScope call("isend", false);
    *request = leftover();
    Result result{};
    if constexpr (std::is_same_v<decltype(table_.isend), IsendV10>) {
      result = table_.isend(comm, data, bytes, tag, mr, nullptr, request);
    } else if constexpr (std::is_same_v<decltype(table_.isend), IsendV9>) {
      result = table_.isend(comm, data, bytes, tag, mr, request);
    } else if constexpr (std::is_same_v<decltype(table_.isend), IsendV5>) {
      result = table_.isend(comm, data, static_cast<int>(bytes), tag, mr, request);
    } else {
      result = table_.isend(comm, data, static_cast<int>(bytes), mr, request);
    }
    check_slot("calls.request-written", "isend", result, request);
    return result;
  }

  Result irecv(void* comm,
               int count,
               void** data,
               std::size_t* bytes,
               int* tags,
               void** mrs,
               void** request) override {
    const CallScope call("irecv", false);
    // NCCL's hint, which is allowed to stand for "one buffer, whose arrival somebody else watches".
    const bool is_hinted = version_ >= 9 && count == 1 && (++irecvs_ % 2) == 0;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* const before = is_hinted ? reinterpret_cast<void*>(kOptionalRecvCompletion) : leftover();
    *request = before;
    std::array<int, 8> narrow{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      narrow[i] = static_cast<int>(bytes[i]);
    }
    Result result{};
    if constexpr (std::is_same_v<decltype(table_.irecv), IrecvV10>) {
      std::array<void*, 8> profiles{};
      result = table_.irecv(comm, count, data, bytes, tags, mrs, profiles.data(), request);
    } else if constexpr (std::is_same_v<decltype(table_.irecv), IrecvV9>) {
      result = table_.irecv(comm, count, data, bytes, tags, mrs, request);
    } else if constexpr (std::is_same_v<decltype(table_.irecv), IrecvV5>) {
      result = table_.irecv(comm, count, data, narrow.data(), tags, mrs, request);
    } else {
      result = table_.irecv(comm, data[0], narrow[0], mrs[0], request);
    }
    if (result == Result::kSuccess && *request == before) {
      check("calls.request-written", false, "irecv left the old value");
      *request = nullptr;
    }
    return result;
  }

  Result iflush(
      void* comm, int count, void** data, int* bytes, void** mrs, void** request) override {
    const CallScope call("iflush", false);
    *request = leftover();
    Result result{};
    if constexpr (std::is_same_v<decltype(table_.iflush), IflushV5>) {
      result = table_.iflush(comm, count, data, bytes, mrs, request);
    } else {
      result = table_.iflush(comm, data[0], bytes[0], mrs[0], request);
    }
    check_slot("calls.request-written", "iflush", result, request);
    return result;
  }

  Result test(void* request, bool* done, int* bytes) override {
    const CallScope call("test", false);
    int word = kLeftoverDone;
    const Result result = table_.test(request, &word, bytes);
    if (result == Result::kSuccess && word != 0 && word != 1) {
      check("calls.done-written", false, "done is %#x after test", static_cast<unsigned>(word));
    }
    *done = result == Result::kSuccess && word == 1;
    return result;
  }

  Result close_send(void* comm) override {
    const CallScope call("closeSend", false);
    return table_.close_send(comm);
  }
  Result close_recv(void* comm) override {
    const CallScope call("closeRecv", false);
    return table_.close_recv(comm);
  }
  Result close_listen(void* comm) override {
    const CallScope call("closeListen", false);
    return table_.close_listen(comm);
  }

 private:
  static constexpr bool kSinceV11 = requires(Table t) { t.finalize; };

  template <typename T>
  struct PropertiesOf;
  template <typename P>
  struct PropertiesOf<GetProperties<P>> {
    using Type = P;
  };
  using Properties = typename PropertiesOf<decltype(Table::get_properties)>::Type;

  /// Room for properties, before memory that nobody may touch.
  class PropertiesRoom {
   public:
    explicit PropertiesRoom(int background) {
      std::memset(buffer_.data(), background, buffer_.size());
    }
    Properties* get() const { return reinterpret_cast<Properties*>(buffer_.data()); }

   private:
    GuardedBuffer buffer_{sizeof(Properties)};
  };

  static PropertiesV12 widen(const Properties& from) {
    PropertiesV12 to{};
    to.name = from.name;
    to.pci_path = from.pci_path;
    to.guid = from.guid;
    to.ptr_support = from.ptr_support;
    to.speed_mbps = from.speed_mbps;
    to.port = from.port;
    to.max_comms = from.max_comms;
    to.max_recvs = 1;
    to.parts.count = 1;
    to.max_p2p_bytes = std::size_t{1} << 30;
    to.max_coll_bytes = std::size_t{1} << 30;
    if constexpr (requires { from.max_recvs; }) {
      to.latency_us = from.latency_us;
      to.max_recvs = from.max_recvs;
    }
    if constexpr (requires { from.device_type; }) {
      to.device_type = from.device_type;
      to.device_version = from.device_version;
    }
    if constexpr (requires { from.parts; }) {
      to.parts.count = from.parts.count;
      to.max_p2p_bytes = from.max_p2p_bytes;
      to.max_coll_bytes = from.max_coll_bytes;
    }
    return to;
  }

  int version_;
  const Table& table_;
  std::atomic<unsigned> irecvs_{0};
};

template <typename Table>
std::unique_ptr<Driver> make(int version, const void* table) {
  return std::make_unique<DriverFor<Table>>(version, *static_cast<const Table*>(table));
}

}  // namespace

const char* name_of(Result result) {
  switch (result) {
    case Result::kSuccess:
      return "success";
    case Result::kUnhandledCudaError:
      return "unhandled CUDA error";
    case Result::kSystemError:
      return "system error";
    case Result::kInternalError:
      return "internal error";
    case Result::kInvalidArgument:
      return "invalid argument";
    case Result::kInvalidUsage:
      return "invalid usage";
    case Result::kRemoteError:
      return "remote error";
  }
  return "no result of NCCL";
}

std::unique_ptr<Driver> make_driver(int version, const void* table) {
  switch (version) {
    case 4:
      return make<NetV4>(version, table);
    case 5:
      return make<NetV5>(version, table);
    case 6:
      return make<NetV6>(version, table);
    case 7:
      return make<NetV7>(version, table);
    case 8:
      return make<NetV8>(version, table);
    case 9:
      return make<NetV9>(version, table);
    case 10:
      return make<NetV10>(version, table);
    case 11:
      return make<NetV11>(version, table);
    case 12:
      return make<NetV12>(version, table);
    default:
      return nullptr;
  }
}

void note_calls() {
  for (const char* rule : {"calls.no-crash",
                           "calls.return",
                           "calls.comm-written",
                           "calls.request-written",
                           "calls.done-written"}) {
    report().note(rule, Outcome::kOk);
  }
}

}  // namespace net_conform
