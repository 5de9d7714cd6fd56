// Versions 4 to 11, each in terms of the next newer one.
#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "plugin/core.hpp"
#include "plugin/entries.hpp"
#include "plugin/guard.hpp"
#include "sync/mutex.hpp"

namespace harp::plugin {
namespace {

/// What old and new properties have in common, under the same names.
template <typename Old, typename New>
void copy_basics(const New& from, Old* to) {
  to->name = from.name;
  to->pci_path = from.pci_path;
  to->guid = from.guid;
  to->ptr_support = from.ptr_support;
  to->speed_mbps = from.speed_mbps;
  to->port = from.port;
  to->max_comms = from.max_comms;
}

template <typename Old, typename New>
void copy_since_v5(const New& from, Old* to) {
  copy_basics(from, to);
  to->latency_us = from.latency_us;
  to->max_recvs = from.max_recvs;
}

template <typename Old, typename New>
void copy_since_v7(const New& from, Old* to) {
  copy_since_v5(from, to);
  to->device_type = from.device_type;
  to->device_version = from.device_version;
}

template <typename Old, typename New>
void copy_since_v9(const New& from, Old* to) {
  copy_since_v7(from, to);
  to->reg_is_global = from.reg_is_global;
  to->force_flush = from.force_flush;
  to->parts.count = from.parts.count;
  for (int i = 0; i < 4; ++i) {
    to->parts.devices[i] = from.parts.devices[i];
  }
  to->max_p2p_bytes = from.max_p2p_bytes;
  to->max_coll_bytes = from.max_coll_bytes;
}

/// Asks the newer version, then translates.
template <typename New, typename Old>
Result translate(Result (*newer)(int, New*) noexcept,
                 int device,
                 Old* properties,
                 void (*copy)(const New&, Old*)) {
  if (properties == nullptr) {
    return Result::kInvalidArgument;
  }
  New full{};
  const Result result = newer(device, &full);
  if (result == Result::kSuccess) {
    copy(full, properties);
  }
  return result;
}

}  // namespace

namespace v11 {

Result get_properties(int device, abi::PropertiesV11* properties) noexcept {
  return translate<abi::PropertiesV12, abi::PropertiesV11>(
      v12::get_properties, device, properties, [](const auto& from, auto* to) {
        copy_since_v9(from, to);
        to->max_multi_request = from.max_multi_request;
      });
}

}  // namespace v11

// Up to version 10 there is no context. The traffic class comes with each connection, so there is
// one context for each class, made when it is first asked for. Nothing ends them: there is no
// finalize().
namespace v10 {
namespace {

struct Process {
  struct Entry {
    int traffic_class;
    void* context;
  };

  Mutex mutex;
  abi::Logger logger HARP_GUARDED_BY(mutex) = nullptr;
  abi::Profiler profiler HARP_GUARDED_BY(mutex) = nullptr;
  bool is_initialised HARP_GUARDED_BY(mutex) = false;
  std::vector<Entry> contexts HARP_GUARDED_BY(mutex);
};

Process& process() {
  static auto* const kProcess = new Process();  // Never destroyed, as net().
  return *kProcess;
}

Result context_for_locked(Process& state, int traffic_class, void** context)
    HARP_REQUIRES(state.mutex) {
  for (const Process::Entry& entry : state.contexts) {
    if (entry.traffic_class == traffic_class) {
      *context = entry.context;
      return Result::kSuccess;
    }
  }
  abi::CommConfig config{traffic_class};
  const Result result = v12::init(context, 0, &config, state.logger, state.profiler);
  if (result == Result::kSuccess) {
    state.contexts.push_back({traffic_class, *context});
  }
  return result;
}

Result context_for(const char* entry, int traffic_class, void** context) {
  Process& state = process();
  const MutexLock lock(state.mutex);
  if (!state.is_initialised) {
    log(abi::LogLevel::kWarn, entry, "called before init");
    return Result::kInvalidUsage;
  }
  return context_for_locked(state, traffic_class, context);
}

}  // namespace

Result init(abi::Logger logger, abi::Profiler profiler) noexcept {
  return guard("init", [&] {
    Process& state = process();
    const MutexLock lock(state.mutex);
    state.logger = logger;
    state.profiler = profiler;
    set_logger(logger);
    void* context = nullptr;
    const Result result = context_for_locked(state, abi::kTrafficClassUndefined, &context);
    state.is_initialised = state.is_initialised || result == Result::kSuccess;
    return result;
  });
}

Result get_properties(int device, abi::PropertiesV10* properties) noexcept {
  return translate<abi::PropertiesV11, abi::PropertiesV10>(
      v11::get_properties, device, properties, [](const auto& from, auto* to) {
        copy_since_v9(from, to);
      });
}

Result listen(int device, void* handle, void** listen_comm) noexcept {
  return guard("listen", [&] {
    void* context = nullptr;
    const Result result = context_for("listen", abi::kTrafficClassUndefined, &context);
    return result == Result::kSuccess ? v12::listen(context, device, handle, listen_comm) : result;
  });
}

Result connect(int device,
               abi::CommConfig* config,
               void* handle,
               void** send_comm,
               abi::DeviceHandle** offload) noexcept {
  return guard("connect", [&] {
    const int traffic_class =
        config != nullptr ? config->traffic_class : abi::kTrafficClassUndefined;
    void* context = nullptr;
    const Result result = context_for("connect", traffic_class, &context);
    return result == Result::kSuccess ? v12::connect(context, device, handle, send_comm, offload)
                                      : result;
  });
}

}  // namespace v10

// No profiler, and no traffic class.
namespace v9 {

Result init(abi::Logger logger) noexcept {
  return v10::init(logger, nullptr);
}

Result connect(int device, void* handle, void** send_comm, abi::DeviceHandle** offload) noexcept {
  return v10::connect(device, nullptr, handle, send_comm, offload);
}

Result isend(
    void* comm, void* data, std::size_t bytes, int tag, void* mr, void** request) noexcept {
  return v12::isend(comm, data, bytes, tag, mr, nullptr, request);
}

Result irecv(void* comm,
             int count,
             void** data,
             std::size_t* bytes,
             int* tags,
             void** mrs,
             void** request) noexcept {
  return v12::irecv(comm, count, data, bytes, tags, mrs, nullptr, request);
}

}  // namespace v9

// Messages are counted in int.
namespace v8 {

Result get_properties(int device, abi::PropertiesV8* properties) noexcept {
  return translate<abi::PropertiesV10, abi::PropertiesV8>(
      v10::get_properties, device, properties, [](const auto& from, auto* to) {
        copy_since_v7(from, to);
        to->reg_is_global = from.reg_is_global;
      });
}

Result isend(void* comm, void* data, int bytes, int tag, void* mr, void** request) noexcept {
  if (bytes < 0) {
    return Result::kInvalidArgument;
  }
  return v9::isend(comm, data, static_cast<std::size_t>(bytes), tag, mr, request);
}

Result irecv(void* comm,
             int count,
             void** data,
             int* bytes,  // NOLINT(misc-const-correctness): the ABI's type
             int* tags,
             void** mrs,
             void** request) noexcept {
  std::array<std::size_t, kMaxGroupedReceives> wide{};
  for (int i = 0; i < count && i < kMaxGroupedReceives; ++i) {
    if (bytes[i] < 0) {
      return Result::kInvalidArgument;
    }
    wide[static_cast<std::size_t>(i)] = static_cast<std::size_t>(bytes[i]);
  }
  return v9::irecv(comm, count, data, wide.data(), tags, mrs, request);
}

}  // namespace v8

// So is registered memory, and no registration is shared by comms.
namespace v7 {

Result get_properties(int device, abi::PropertiesV7* properties) noexcept {
  return translate<abi::PropertiesV8, abi::PropertiesV7>(
      v8::get_properties, device, properties, [](const auto& from, auto* to) {
        copy_since_v7(from, to);
      });
}

Result reg_mr(void* comm, void* data, int bytes, int type, void** mr) noexcept {
  if (bytes < 0) {
    return Result::kInvalidArgument;
  }
  return v12::reg_mr(comm, data, static_cast<std::size_t>(bytes), type, mr);
}

}  // namespace v7

// No offload to devices. Version 5 is version 6 without reg_mr_dma_buf.
namespace v6 {

Result get_properties(int device, abi::PropertiesV6* properties) noexcept {
  return translate<abi::PropertiesV7, abi::PropertiesV6>(
      v7::get_properties, device, properties, [](const auto& from, auto* to) {
        copy_since_v5(from, to);
      });
}

Result connect(int device, void* handle, void** send_comm) noexcept {
  abi::DeviceHandle* offload = nullptr;
  return v9::connect(device, handle, send_comm, &offload);
}

Result accept(void* listen_comm, void** recv_comm) noexcept {
  abi::DeviceHandle* offload = nullptr;
  return v12::accept(listen_comm, recv_comm, &offload);
}

}  // namespace v6

// No groups and no tags; connect() and accept() return when they are through.
namespace v4 {
namespace {

template <typename Attempt>
Result until_there(const char* entry, void** comm, Attempt attempt) noexcept {
  return guard(entry, [&] {
    if (comm == nullptr) {
      return Result::kInvalidArgument;
    }
    const auto deadline = std::chrono::steady_clock::now() + net().blocking_limit();
    while (true) {
      const Result result = attempt();
      if (result != Result::kSuccess || *comm != nullptr) {
        return result;
      }
      if (std::chrono::steady_clock::now() > deadline) {
        log(abi::LogLevel::kWarn, entry, "the peer did not come in time");
        return Result::kSystemError;
      }
      net().pause();
    }
  });
}

}  // namespace

Result get_properties(int device, abi::PropertiesV4* properties) noexcept {
  return translate<abi::PropertiesV6, abi::PropertiesV4>(
      v6::get_properties, device, properties, [](const auto& from, auto* to) {
        copy_basics(from, to);
      });
}

Result connect(int device, void* handle, void** send_comm) noexcept {
  return until_there("connect", send_comm, [&] { return v6::connect(device, handle, send_comm); });
}

Result accept(void* listen_comm, void** recv_comm) noexcept {
  return until_there("accept", recv_comm, [&] { return v6::accept(listen_comm, recv_comm); });
}

Result isend(void* comm, void* data, int bytes, void* mr, void** request) noexcept {
  return v8::isend(comm, data, bytes, 0, mr, request);
}

Result irecv(void* comm, void* data, int bytes, void* mr, void** request) noexcept {
  int tag = 0;
  return v8::irecv(comm, 1, &data, &bytes, &tag, &mr, request);
}

Result iflush(void* comm, void* data, int bytes, void* mr, void** request) noexcept {
  return v12::iflush(comm, 1, &data, &bytes, &mr, request);
}

}  // namespace v4

}  // namespace harp::plugin
