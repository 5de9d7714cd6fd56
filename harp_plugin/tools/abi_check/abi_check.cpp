// Compares harp::abi with NVIDIA's headers, at compile time. Compiled by abi_check.py, never
// linked.
//
// HARP_NVIDIA_HEADER is the header to compare with, and HARP_CHECK_VN says that it has version N.
// Our structs are not NVIDIA's, so two types count as the same when they are the same built-in
// type, or a pair that is listed here and compared field by field, or pointers or functions made of
// such.
#include HARP_NVIDIA_HEADER

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "abi/layout.hpp"

namespace {

using namespace harp::abi;

template <typename Ours, typename Theirs>
struct Same : std::is_same<Ours, Theirs> {};

// A struct is the same as its own counterpart only; what it holds is compared where it is listed.
template <typename Ours, typename Theirs>
struct Paired : std::false_type {};

template <typename Ours, typename Theirs>
  requires(std::is_class_v<Ours> && std::is_class_v<Theirs>)
struct Same<Ours, Theirs> : Paired<Ours, Theirs> {};

// An enumeration of the other side is an int or ours of the same width.
template <typename Ours, typename Theirs>
  requires(std::is_enum_v<Ours> && std::is_enum_v<Theirs>)
struct Same<Ours, Theirs> : Paired<Ours, Theirs> {};

template <typename Ours, typename Theirs>
struct Same<Ours*, Theirs*> : Same<Ours, Theirs> {};

template <typename Ours, typename Theirs, std::size_t kCount>
struct Same<Ours[kCount], Theirs[kCount]> : Same<Ours, Theirs> {};  // NOLINT

template <typename R, typename... A, typename S, typename... B>
  requires(sizeof...(A) == sizeof...(B))
struct Same<R (*)(A...), S (*)(B...)>
    : std::bool_constant<Same<R, S>::value && (Same<A, B>::value && ...)> {};

template <typename R, typename... A, typename S, typename... B>
  requires(sizeof...(A) == sizeof...(B))
struct Same<R (*)(A..., ...), S (*)(B..., ...)>
    : std::bool_constant<Same<R, S>::value && (Same<A, B>::value && ...)> {};

#define PAIR(ours, theirs)                                               \
  template <>                                                            \
  struct Paired<ours, theirs> : std::true_type {};                       \
  static_assert(sizeof(ours) == sizeof(theirs), #ours ": size differs"); \
  static_assert(alignof(ours) == alignof(theirs), #ours ": alignment differs")

#define FIELD(ours, our_field, theirs, their_field)                                        \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field),                \
                #ours "::" #our_field ": offset differs from " #theirs "::" #their_field); \
  static_assert(Same<decltype(ours::our_field), decltype(theirs::their_field)>::value,     \
                #ours "::" #our_field ": type differs from " #theirs "::" #their_field)

#define VALUE(ours, theirs) \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #theirs " differs")

// The pairs come first: Paired may not be specialised after its first use.
PAIR(Result, ncclResult_t);
PAIR(LogLevel, ncclDebugLogLevel);
#if HARP_CHECK_V4
PAIR(PropertiesV4, ncclNetProperties_v4_t);
#endif
#if HARP_CHECK_V5 && HARP_CHECK_V6
using TheirPropertiesV5 = ncclNetProperties_v6_t;  // v5 is another name for it.
#elif HARP_CHECK_V5
using TheirPropertiesV5 = ncclNetProperties_v5_t;
PAIR(PropertiesV6, TheirPropertiesV5);
#endif
#if HARP_CHECK_V6
PAIR(PropertiesV6, ncclNetProperties_v6_t);
#endif
#if HARP_CHECK_V7
PAIR(PropertiesV7, ncclNetProperties_v7_t);
#endif
#if HARP_CHECK_V8
PAIR(PropertiesV8, ncclNetProperties_v8_t);
#endif
#if HARP_CHECK_V9
PAIR(PropertiesV10, ncclNetProperties_v9_t);
PAIR(VirtualDeviceV9, ncclNetVDeviceProps_v9_t);
#endif
#if HARP_CHECK_V10
#if !HARP_V10_IS_V9
PAIR(PropertiesV10, ncclNetProperties_v10_t);
PAIR(VirtualDeviceV9, ncclNetVDeviceProps_v10_t);
#endif
PAIR(CommConfig, ncclNetCommConfig_v10_t);
#endif
#if HARP_CHECK_V11
PAIR(PropertiesV11, ncclNetProperties_v11_t);
#if !HARP_V11_IS_V10
PAIR(VirtualDeviceV9, ncclNetVDeviceProps_v11_t);
PAIR(CommConfig, ncclNetCommConfig_v11_t);
#endif
PAIR(CommAttributes, ncclNetCommAttr_v11_t);
PAIR(NetAttributes, ncclNetAttr_v11_t);
#endif
#if HARP_CHECK_V12
PAIR(PropertiesV12, ncclNetProperties_v12_t);
PAIR(VirtualDeviceV12, ncclNetVDeviceProps_v12_t);
#if !HARP_V12_IS_V11
PAIR(CommConfig, ncclNetCommConfig_v12_t);
PAIR(CommAttributes, ncclNetCommAttr_v12_t);
PAIR(NetAttributes, ncclNetAttr_v12_t);
#endif
#endif
#if HARP_CHECK_V7
PAIR(DeviceType, ncclNetDeviceType);
PAIR(DeviceHandle, ncclNetDeviceHandle_t);
#endif

VALUE(Result::kSuccess, ncclSuccess);
VALUE(Result::kUnhandledCudaError, ncclUnhandledCudaError);
VALUE(Result::kSystemError, ncclSystemError);
VALUE(Result::kInternalError, ncclInternalError);
VALUE(Result::kInvalidArgument, ncclInvalidArgument);
#if HARP_HAS_ncclInvalidUsage
VALUE(Result::kInvalidUsage, ncclInvalidUsage);
#endif
#if HARP_HAS_ncclRemoteError
VALUE(Result::kRemoteError, ncclRemoteError);
#endif

VALUE(LogLevel::kNone, NCCL_LOG_NONE);
VALUE(LogLevel::kVersion, NCCL_LOG_VERSION);
VALUE(LogLevel::kWarn, NCCL_LOG_WARN);
VALUE(LogLevel::kInfo, NCCL_LOG_INFO);
VALUE(LogLevel::kAbort, NCCL_LOG_ABORT);
VALUE(LogLevel::kTrace, NCCL_LOG_TRACE);
VALUE(kLogInit, NCCL_INIT);
VALUE(kLogNet, NCCL_NET);
VALUE(kLogEnv, NCCL_ENV);
VALUE(kLogAll, NCCL_ALL);
static_assert(Same<Logger, ncclDebugLogger_t>::value, "ncclDebugLogger_t differs");

VALUE(kPtrHost, NCCL_PTR_HOST);
VALUE(kPtrCuda, NCCL_PTR_CUDA);
#if HARP_CHECK_V6
VALUE(kPtrDmaBuf, NCCL_PTR_DMABUF);
#endif
#if HARP_CHECK_V5
VALUE(kHandleBytes, NCCL_NET_HANDLE_MAXSIZE);
#elif HARP_CHECK_V4
VALUE(kHandleBytesV4, NCCL_NET_HANDLE_MAXSIZE);
#endif
#if HARP_IS_CORE && HARP_CHECK_V7
VALUE(kMaxRequests, NCCL_NET_MAX_REQUESTS);
#elif HARP_IS_CORE
VALUE(kMaxRequestsV6, NCCL_NET_MAX_REQUESTS);
#endif
#ifdef NCCL_NET_HANDLE_MAXSIZE_V4
VALUE(kHandleBytesV4, NCCL_NET_HANDLE_MAXSIZE_V4);
#endif
#ifdef NCCL_NET_MAX_REQUESTS_V6
VALUE(kMaxRequestsV6, NCCL_NET_MAX_REQUESTS_V6);
#endif

#if HARP_HAS_ncclFloat64
static_assert(sizeof(DataType) == sizeof(ncclDataType_t));
VALUE(DataType::kInt8, ncclInt8);
VALUE(DataType::kUint8, ncclUint8);
VALUE(DataType::kInt32, ncclInt32);
VALUE(DataType::kUint32, ncclUint32);
VALUE(DataType::kInt64, ncclInt64);
VALUE(DataType::kUint64, ncclUint64);
VALUE(DataType::kFloat16, ncclFloat16);
VALUE(DataType::kFloat32, ncclFloat32);
VALUE(DataType::kFloat64, ncclFloat64);
#if HARP_CHECK_V5
VALUE(DataType::kBfloat16, ncclBfloat16);
#endif
#endif

#if HARP_CHECK_V7
VALUE(DeviceType::kHost, NCCL_NET_DEVICE_HOST);
VALUE(DeviceType::kUnpack, NCCL_NET_DEVICE_UNPACK);
VALUE(kDeviceVersionInvalid, NCCL_NET_DEVICE_INVALID_VERSION);
FIELD(DeviceHandle, type, ncclNetDeviceHandle_t, netDeviceType);
FIELD(DeviceHandle, version, ncclNetDeviceHandle_t, netDeviceVersion);
FIELD(DeviceHandle, handle, ncclNetDeviceHandle_t, handle);
FIELD(DeviceHandle, size, ncclNetDeviceHandle_t, size);
FIELD(DeviceHandle, needs_proxy_progress, ncclNetDeviceHandle_t, needsProxyProgress);
#endif
#if HARP_HAS_NCCL_NET_DEVICE_GIN_PROXY
VALUE(DeviceType::kGinProxy, NCCL_NET_DEVICE_GIN_PROXY);
#endif
#if HARP_HAS_NCCL_NET_DEVICE_GIN_GDAKI
VALUE(DeviceType::kGinGdaki, NCCL_NET_DEVICE_GIN_GDAKI);
#endif
#if HARP_HAS_NCCL_NET_DEVICE_GIN_GPI
VALUE(DeviceType::kGinGpi, NCCL_NET_DEVICE_GIN_GPI);
#endif
#if HARP_CHECK_V9
#ifdef NCCL_MAX_NET_SIZE_BYTES
VALUE(kMaxNetBytes, NCCL_MAX_NET_SIZE_BYTES);
#endif
#ifdef NCCL_NET_OPTIONAL_RECV_COMPLETION
VALUE(kOptionalRecvCompletion, NCCL_NET_OPTIONAL_RECV_COMPLETION);
#endif
#endif

#define PROPERTIES_OF_ALL(ours, theirs)         \
  FIELD(ours, name, theirs, name);              \
  FIELD(ours, pci_path, theirs, pciPath);       \
  FIELD(ours, guid, theirs, guid);              \
  FIELD(ours, ptr_support, theirs, ptrSupport); \
  FIELD(ours, speed_mbps, theirs, speed);       \
  FIELD(ours, port, theirs, port);              \
  FIELD(ours, max_comms, theirs, maxComms)
#define PROPERTIES_SINCE_V5(ours, theirs)   \
  PROPERTIES_OF_ALL(ours, theirs);          \
  FIELD(ours, latency_us, theirs, latency); \
  FIELD(ours, max_recvs, theirs, maxRecvs)
#define PROPERTIES_SINCE_V7(ours, theirs)          \
  PROPERTIES_SINCE_V5(ours, theirs);               \
  FIELD(ours, device_type, theirs, netDeviceType); \
  FIELD(ours, device_version, theirs, netDeviceVersion)
#define PROPERTIES_SINCE_V9(ours, theirs)          \
  PROPERTIES_SINCE_V7(ours, theirs);               \
  FIELD(ours, reg_is_global, theirs, regIsGlobal); \
  FIELD(ours, force_flush, theirs, forceFlush);    \
  FIELD(ours, parts, theirs, vProps);              \
  FIELD(ours, max_p2p_bytes, theirs, maxP2pBytes); \
  FIELD(ours, max_coll_bytes, theirs, maxCollBytes)

#define TABLE(ours, theirs)                                                \
  static_assert(sizeof(ours) == sizeof(theirs), #theirs ": size differs"); \
  FIELD(ours, name, theirs, name);                                         \
  FIELD(ours, init, theirs, init);                                         \
  FIELD(ours, devices, theirs, devices);                                   \
  FIELD(ours, get_properties, theirs, getProperties);                      \
  FIELD(ours, listen, theirs, listen);                                     \
  FIELD(ours, connect, theirs, connect);                                   \
  FIELD(ours, accept, theirs, accept);                                     \
  FIELD(ours, reg_mr, theirs, regMr);                                      \
  FIELD(ours, dereg_mr, theirs, deregMr);                                  \
  FIELD(ours, isend, theirs, isend);                                       \
  FIELD(ours, irecv, theirs, irecv);                                       \
  FIELD(ours, iflush, theirs, iflush);                                     \
  FIELD(ours, test, theirs, test);                                         \
  FIELD(ours, close_send, theirs, closeSend);                              \
  FIELD(ours, close_recv, theirs, closeRecv);                              \
  FIELD(ours, close_listen, theirs, closeListen)
#define TABLE_SINCE_V7(ours, theirs)                \
  TABLE(ours, theirs);                              \
  FIELD(ours, reg_mr_dma_buf, theirs, regMrDmaBuf); \
  FIELD(ours, get_device_mr, theirs, getDeviceMr);  \
  FIELD(ours, irecv_consumed, theirs, irecvConsumed)
#define TABLE_SINCE_V11(ours, theirs)                    \
  TABLE_SINCE_V7(ours, theirs);                          \
  FIELD(ours, make_virtual_device, theirs, makeVDevice); \
  FIELD(ours, finalize, theirs, finalize);               \
  FIELD(ours, set_net_attributes, theirs, setNetAttr)

#define DEVICE(ours, theirs)         \
  FIELD(ours, count, theirs, ndevs); \
  FIELD(ours, devices, theirs, devs)
#define ATTRIBUTES(ours_comm, theirs_comm, theirs)                         \
  FIELD(ours_comm, max_concurrent_peers, theirs_comm, maxConcurrentPeers); \
  FIELD(ours_comm, min_concurrent_peers, theirs_comm, minConcurrentPeers); \
  FIELD(ours_comm, max_flows_per_peer, theirs_comm, maxFlowsPerPeer);      \
  FIELD(ours_comm, min_flows_per_peer, theirs_comm, minFlowsPerPeer);      \
  FIELD(NetAttributes, send, theirs, sendCommAttr);                        \
  FIELD(NetAttributes, recv, theirs, recvCommAttr);                        \
  FIELD(NetAttributes, op, theirs, op);                                    \
  FIELD(NetAttributes, algo, theirs, algo);                                \
  FIELD(NetAttributes, proto, theirs, proto)

#if HARP_CHECK_V4
PROPERTIES_OF_ALL(PropertiesV4, ncclNetProperties_v4_t);
TABLE(NetV4, ncclNet_v4_t);
#endif
#if HARP_CHECK_V5
PROPERTIES_SINCE_V5(PropertiesV6, TheirPropertiesV5);
TABLE(NetV5, ncclNet_v5_t);
#endif
#if HARP_CHECK_V6
PROPERTIES_SINCE_V5(PropertiesV6, ncclNetProperties_v6_t);
TABLE(NetV6, ncclNet_v6_t);
FIELD(NetV6, reg_mr_dma_buf, ncclNet_v6_t, regMrDmaBuf);
#endif
#if HARP_CHECK_V7
PROPERTIES_SINCE_V7(PropertiesV7, ncclNetProperties_v7_t);
TABLE_SINCE_V7(NetV7, ncclNet_v7_t);
#endif
#if HARP_CHECK_V8
PROPERTIES_SINCE_V7(PropertiesV8, ncclNetProperties_v8_t);
FIELD(PropertiesV8, reg_is_global, ncclNetProperties_v8_t, regIsGlobal);
TABLE_SINCE_V7(NetV8, ncclNet_v8_t);
#endif
#if HARP_CHECK_V9
DEVICE(VirtualDeviceV9, ncclNetVDeviceProps_v9_t);
PROPERTIES_SINCE_V9(PropertiesV10, ncclNetProperties_v9_t);
TABLE_SINCE_V7(NetV9, ncclNet_v9_t);
FIELD(NetV9, make_virtual_device, ncclNet_v9_t, makeVDevice);
#endif
#if HARP_CHECK_V10
VALUE(kTrafficClassUndefined, NCCL_NET_TRAFFIC_CLASS_UNDEF);
FIELD(CommConfig, traffic_class, ncclNetCommConfig_v10_t, trafficClass);
static_assert(Same<Profiler, ncclProfilerCallback_t>::value, "ncclProfilerCallback_t differs");
#if HARP_HAS_ncclProfilerNetEventStart
VALUE(ProfilerEvent::kStart, ncclProfilerNetEventStart);
VALUE(ProfilerEvent::kStop, ncclProfilerNetEventStop);
VALUE(ProfilerEvent::kUpdate, ncclProfilerNetEventUpdate);
VALUE(ProfilerEvent::kUpdateAndStop, ncclProfilerNetEventUpdateAndStop);
#endif
DEVICE(VirtualDeviceV9, ncclNetVDeviceProps_v10_t);
PROPERTIES_SINCE_V9(PropertiesV10, ncclNetProperties_v10_t);
TABLE_SINCE_V7(NetV10, ncclNet_v10_t);
FIELD(NetV10, make_virtual_device, ncclNet_v10_t, makeVDevice);
#endif
#if HARP_CHECK_V11
FIELD(CommConfig, traffic_class, ncclNetCommConfig_v11_t, trafficClass);
ATTRIBUTES(CommAttributes, ncclNetCommAttr_v11_t, ncclNetAttr_v11_t);
DEVICE(VirtualDeviceV9, ncclNetVDeviceProps_v11_t);
PROPERTIES_SINCE_V9(PropertiesV11, ncclNetProperties_v11_t);
FIELD(PropertiesV11, max_multi_request, ncclNetProperties_v11_t, maxMultiRequestSize);
TABLE_SINCE_V11(NetV11, ncclNet_v11_t);
#endif
#if HARP_CHECK_V12
VALUE(kIdUndefined, NCCL_NET_ID_UNDEF);
FIELD(CommConfig, traffic_class, ncclNetCommConfig_v12_t, trafficClass);
ATTRIBUTES(CommAttributes, ncclNetCommAttr_v12_t, ncclNetAttr_v12_t);
DEVICE(VirtualDeviceV12, ncclNetVDeviceProps_v12_t);
PROPERTIES_SINCE_V9(PropertiesV12, ncclNetProperties_v12_t);
FIELD(PropertiesV12, max_multi_request, ncclNetProperties_v12_t, maxMultiRequestSize);
FIELD(PropertiesV12, rail, ncclNetProperties_v12_t, railId);
FIELD(PropertiesV12, plane, ncclNetProperties_v12_t, planeId);
TABLE_SINCE_V11(NetV12, ncclNet_v12_t);
#endif

}  // namespace
