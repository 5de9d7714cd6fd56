// What every version of the ncclNet ABI shares: results, numbers, callbacks.
//
// NCCL loads a network plugin with dlopen() and calls it through a table of C function pointers.
// This folder states that ABI in our own words: only what a plugin must agree on with NCCL to the
// byte, which is sizes, offsets, values and signatures. `make abi-check NCCL_SRC=...` compares all
// of it with NVIDIA's own headers; layout.hpp repeats the numbers, so that a slip shows up without
// them.
//
// Nothing here is linked, and nothing depends on CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace harp::abi {

/// How a call of the plugin went (ncclResult_t). Anything but kSuccess ends the communicator.
enum class Result : std::uint32_t {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,  ///< The peer is gone. NCCL before 2.13 does not know it.
};

/// ncclDataType_t, for collective plugins and tools; the point-to-point tables move bytes.
enum class DataType : std::uint32_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

/// Where a buffer lives; a set of these is what a device supports (NCCL_PTR_*).
inline constexpr int kPtrHost = 1;
inline constexpr int kPtrCuda = 2;
inline constexpr int kPtrDmaBuf = 4;

/// Bytes of the buffer that listen() fills and that NCCL carries to the peer. Version 4 was also
/// loaded by NCCL 2.8 to 2.11, whose buffer is the small one.
inline constexpr std::size_t kHandleBytes = 128;
inline constexpr std::size_t kHandleBytesV4 = 64;

/// Requests that NCCL may have outstanding on one comm: the small number up to version 6.
inline constexpr int kMaxRequests = 32;
inline constexpr int kMaxRequestsV6 = 8;

/// Most bytes that maxP2pBytes and maxCollBytes may promise; NCCL refuses more.
inline constexpr std::size_t kMaxNetBytes = std::size_t{1} << 40;

/// What NCCL may leave in an irecv's request slot from version 9 on: completion may come early.
inline constexpr std::uintptr_t kOptionalRecvCompletion = 1;

/// "Not set" for the traffic class of a communicator, and for a device's rail and plane.
inline constexpr int kTrafficClassUndefined = -1;
inline constexpr std::int16_t kIdUndefined = -1;

/// Who moves the data of a device: the host, or kernels together with a NIC.
enum class DeviceType : std::uint32_t {
  kHost = 0,
  kUnpack = 1,
  kGinProxy = 2,
  kGinGdaki = 3,
  kGinGpi = 4,
};
inline constexpr int kDeviceVersionInvalid = 0;

/// What connect() and accept() may hand to kernels (version 7 on). HARP leaves it null.
struct DeviceHandle {
  DeviceType type;
  int version;
  void* handle;
  std::size_t size;
  int needs_proxy_progress;
};

enum class LogLevel : std::uint32_t {
  kNone = 0,
  kVersion = 1,
  kWarn = 2,
  kInfo = 3,
  kAbort = 4,
  kTrace = 5,
};

/// Bits of the logger's `flags`.
inline constexpr unsigned long kLogInit = 1;
inline constexpr unsigned long kLogNet = 16;
inline constexpr unsigned long kLogEnv = 128;
inline constexpr unsigned long kLogAll = ~0UL;

/// NCCL's log, handed to init(); printf's format. Any thread may call it.
using Logger = void (*)(
    LogLevel level, unsigned long flags, const char* file, int line, const char* format, ...);

enum class ProfilerEvent : int { kStart = 0, kStop = 1, kUpdate = 2, kUpdateAndStop = 3 };

/// NCCL's profiler, handed to init() from version 10 on; may be null.
using Profiler =
    Result (*)(void** event, int type, void* parent, std::int64_t plugin_id, void* extra);

/// Settings of one communicator: to connect() in version 10, to init() from version 11 on.
struct CommConfig {
  int traffic_class;
};

/// Hints of setNetAttr(), from version 11 on; -1 (as unsigned too) says "not known".
struct CommAttributes {
  std::int32_t max_concurrent_peers;
  std::int32_t min_concurrent_peers;
  std::int32_t max_flows_per_peer;
  std::int32_t min_flows_per_peer;
};
struct NetAttributes {
  CommAttributes send;
  CommAttributes recv;
  std::uint32_t op;
  std::uint32_t algo;
  std::uint32_t proto;
};

}  // namespace harp::abi
