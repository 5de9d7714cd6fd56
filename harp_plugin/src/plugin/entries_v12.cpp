// The newest version: the one place where NCCL's pointers meet the classes of core.hpp.
//
// Output pointers are cleared before anything can fail, because NCCL reads some of them after an
// error and leaves old values in all of them.
#include <cstring>
#include <memory>

#include "plugin/core.hpp"
#include "plugin/entries.hpp"
#include "plugin/guard.hpp"

namespace harp::plugin::v12 {
namespace {

using abi::LogLevel;

Result refuse(const char* entry, const char* why) {
  log(LogLevel::kWarn, entry, "%s", why);
  return Result::kInvalidArgument;
}

/// The comm behind `pointer` if it is of this kind, else null.
template <typename T>
T* comm_of(void* pointer, CommKind kind) {
  auto* comm = static_cast<Comm*>(pointer);
  return comm != nullptr && comm->kind() == kind ? static_cast<T*>(comm) : nullptr;
}

DataComm* data_comm_of(void* pointer) {
  auto* comm = static_cast<Comm*>(pointer);
  return comm != nullptr && comm->kind() != CommKind::kListen ? static_cast<DataComm*>(comm)
                                                              : nullptr;
}

/// What NCCL holds is always the address of the Comm part.
template <typename T>
void hand_out(std::unique_ptr<T> comm, void** slot) {
  *slot = static_cast<Comm*>(comm.release());
}

Result close(const char* entry, void* pointer, CommKind kind) noexcept {
  return guard(entry, [&] {
    const auto* comm = comm_of<Comm>(pointer, kind);
    if (comm == nullptr) {
      return refuse(entry, "not a comm of that kind");
    }
    delete comm;
    return Result::kSuccess;
  });
}

}  // namespace

Result init(void** context,
            std::uint64_t comm_id,
            abi::CommConfig* config,
            abi::Logger logger,
            abi::Profiler profiler) noexcept {
  return guard("init", [&] {
    if (context == nullptr) {
      return refuse("init", "no place for the context");
    }
    *context = nullptr;
    if (logger != nullptr) {
      set_logger(logger);
    }
    ContextOptions options;
    options.comm_id = comm_id;
    options.profiler = profiler;
    if (config != nullptr) {
      options.traffic_class = config->traffic_class;
    }
    std::unique_ptr<Context> made;
    const Result result = net().make_context(options, &made);
    *context = made.release();
    return result;
  });
}

Result devices(int* count) noexcept {
  return guard("devices", [&] {
    if (count == nullptr) {
      return refuse("devices", "no place for the count");
    }
    *count = 0;
    return net().devices(count);
  });
}

Result get_properties(int device, abi::PropertiesV12* properties) noexcept {
  return guard("getProperties", [&] {
    if (properties == nullptr) {
      return refuse("getProperties", "no place for the properties");
    }
    return net().properties(device, properties);
  });
}

Result listen(void* context, int device, void* handle, void** listen_comm) noexcept {
  return guard("listen", [&] {
    if (context == nullptr || handle == nullptr || listen_comm == nullptr) {
      return refuse("listen", "a null argument");
    }
    *listen_comm = nullptr;
    Handle made{};
    std::unique_ptr<ListenComm> comm;
    const Result result = static_cast<Context*>(context)->listen(device, &made, &comm);
    if (result == Result::kSuccess) {
      std::memcpy(handle, made.data(), made.size());
      hand_out(std::move(comm), listen_comm);
    }
    return result;
  });
}

Result connect(void* context,
               int device,
               void* handle,
               void** send_comm,
               abi::DeviceHandle** /*offload*/) noexcept {
  return guard("connect", [&] {
    if (context == nullptr || handle == nullptr || send_comm == nullptr) {
      return refuse("connect", "a null argument");
    }
    *send_comm = nullptr;
    Handle peer{};
    std::memcpy(peer.data(), handle, peer.size());
    std::unique_ptr<SendComm> comm;
    const Result result = static_cast<Context*>(context)->connect(device, peer, &comm);
    if (result == Result::kSuccess && comm != nullptr) {
      hand_out(std::move(comm), send_comm);
    }
    return result;
  });
}

Result accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** /*offload*/) noexcept {
  return guard("accept", [&] {
    auto* listener = comm_of<ListenComm>(listen_comm, CommKind::kListen);
    if (listener == nullptr || recv_comm == nullptr) {
      return refuse("accept", "not a listening comm, or no place for the comm");
    }
    *recv_comm = nullptr;
    std::unique_ptr<RecvComm> comm;
    const Result result = listener->accept(&comm);
    if (result == Result::kSuccess && comm != nullptr) {
      hand_out(std::move(comm), recv_comm);
    }
    return result;
  });
}

Result reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mr) noexcept {
  return guard("regMr", [&] {
    auto* owner = data_comm_of(comm);
    if (owner == nullptr || mr == nullptr) {
      return refuse("regMr", "not a comm that moves data, or no place for the registration");
    }
    *mr = nullptr;
    return owner->reg_mr(data, bytes, type, mr);
  });
}

Result dereg_mr(void* comm, void* mr) noexcept {
  return guard("deregMr", [&] {
    auto* owner = data_comm_of(comm);
    return owner != nullptr ? owner->dereg_mr(mr) : refuse("deregMr", "not a comm that moves data");
  });
}

// hot
Result isend(void* comm,
             void* data,
             std::size_t bytes,
             int tag,
             void* mr,
             void* /*profile*/,
             void** request) noexcept {
  return guard("isend", [&] {
    auto* sender = comm_of<SendComm>(comm, CommKind::kSend);
    if (sender == nullptr || request == nullptr) {
      return refuse("isend", "not a sending comm, or no place for the request");
    }
    *request = nullptr;
    Request* made = nullptr;
    const Result result = sender->isend(data, bytes, tag, mr, &made);
    *request = made;
    return result;
  });
}

// hot
Result irecv(void* comm,
             int count,
             void** data,
             std::size_t* bytes,
             int* tags,
             void** mrs,
             void** /*profiles*/,
             void** request) noexcept {
  return guard("irecv", [&] {
    auto* receiver = comm_of<RecvComm>(comm, CommKind::kRecv);
    if (receiver == nullptr || request == nullptr) {
      return refuse("irecv", "not a receiving comm, or no place for the request");
    }
    *request = nullptr;  // NCCL may have left 1 in it, which is no request.
    if (count < 1 || count > kMaxGroupedReceives) {
      return refuse("irecv", "the number of buffers is out of range");
    }
    const auto buffers = static_cast<std::size_t>(count);
    std::array<RecvBuffer, kMaxGroupedReceives> group;  // NOLINT: filled as far as it is used
    for (std::size_t i = 0; i < buffers; ++i) {
      group[i] = {
          data[i], bytes[i], tags != nullptr ? tags[i] : 0, mrs != nullptr ? mrs[i] : nullptr};
    }
    Request* made = nullptr;
    const Result result = receiver->irecv({group.data(), buffers}, &made);
    *request = made;
    return result;
  });
}

Result iflush(void* comm, int count, void** data, int* bytes, void** mrs, void** request) noexcept {
  return guard("iflush", [&] {
    auto* receiver = comm_of<RecvComm>(comm, CommKind::kRecv);
    if (receiver == nullptr || request == nullptr) {
      return refuse("iflush", "not a receiving comm, or no place for the request");
    }
    *request = nullptr;
    if (count < 0 || count > kMaxGroupedReceives) {
      return refuse("iflush", "the number of buffers is out of range");
    }
    const auto buffers = static_cast<std::size_t>(count);
    std::array<RecvBuffer, kMaxGroupedReceives> group{};
    for (std::size_t i = 0; i < buffers; ++i) {
      group[i] = {
          data[i], static_cast<std::size_t>(bytes[i]), 0, mrs != nullptr ? mrs[i] : nullptr};
    }
    Request* made = nullptr;
    const Result result = receiver->iflush({group.data(), buffers}, &made);
    *request = made;
    return result;
  });
}

// hot
Result test(void* request, int* done, int* bytes) noexcept {
  return guard("test", [&] {
    if (request == nullptr || done == nullptr) {
      return refuse("test", "a null argument");
    }
    *done = 0;
    bool finished = false;
    const Result result = static_cast<Request*>(request)->test(&finished, bytes);
    *done = finished ? 1 : 0;
    return result;
  });
}

Result close_send(void* comm) noexcept {
  return close("closeSend", comm, CommKind::kSend);
}

Result close_recv(void* comm) noexcept {
  return close("closeRecv", comm, CommKind::kRecv);
}

Result close_listen(void* comm) noexcept {
  return close("closeListen", comm, CommKind::kListen);
}

Result finalize(void* context) noexcept {
  return guard("finalize", [&] {
    delete static_cast<Context*>(context);
    return Result::kSuccess;
  });
}

}  // namespace harp::plugin::v12
