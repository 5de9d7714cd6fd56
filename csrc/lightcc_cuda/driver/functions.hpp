// NVIDIA's driver as lightcc calls it. cuda.h is not included, so that building needs no CUDA:
// tools/cuda_abi/driver_abi.cpp holds these declarations against it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lightcc::cuda {

/// CUresult.
using Code = int;
/// CUdevice: a GPU's number, as CUDA_VISIBLE_DEVICES leaves them.
using Device = int;
/// CUdeviceptr.
using Address = unsigned long long;
/// The same of what is never read here.
inline Address gpu_address(const std::byte* data) {
  return reinterpret_cast<Address>(data);  // NOLINT: of the GPU
}
/// CUjit_option, CUdevice_attribute, CUpointer_attribute, CUmemPool_attribute,
/// CUstreamCaptureMode.
using Option = int;
/// CUuuid.
struct Uuid {
  std::array<char, 16> bytes;
};
// CUcontext, CUmodule, CUfunction, CUstream, CUevent, CUmemoryPool: only ever pointed to.
struct ContextHandle;
struct ModuleHandle;
struct FunctionHandle;
struct StreamHandle;
struct EventHandle;
struct PoolHandle;

inline constexpr Code kSuccess = 0;
inline constexpr Code kErrorInvalidValue = 1;
inline constexpr Code kErrorInvalidContext = 201;
inline constexpr Code kErrorUnsupportedPtx = 222;
inline constexpr Code kErrorNotFound = 500;
inline constexpr Code kErrorNotReady = 600;
inline constexpr Code kErrorCaptureImplicit = 906;
inline constexpr Option kMajorOfCapability = 75;
inline constexpr Option kMinorOfCapability = 76;
inline constexpr Option kMemoryPools = 115;     // Whether there are any.
inline constexpr Option kReleaseThreshold = 4;  // Bytes that a pool keeps.
inline constexpr Option kMemoryKindOfAddress = 2;
inline constexpr Option kDeviceOfAddress = 9;
inline constexpr Option kJitErrorLog = 5;
inline constexpr Option kJitErrorLogBytes = 6;
inline constexpr unsigned kMemoryOfDevice = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventWithTiming = 0;
inline constexpr unsigned kEventWithoutTiming = 2;
inline constexpr unsigned kHostMemoryForAllContexts = 1;
/// CU_STREAM_CAPTURE_MODE_RELAXED.
inline constexpr Option kCaptureModeRelaxed = 2;

#define LIGHTCC_XYZ unsigned, unsigned, unsigned
// Member, symbol, arguments; all return a Code. The symbols are those that the library exports,
// which cuda.h's macros append "_v2" to. Every driver for CUDA 11.2 and newer has all of them.
#define LIGHTCC_CUDA_FUNCTIONS(X)                                                              \
  X(init, cuInit, (unsigned))                                                                  \
  X(driver_version, cuDriverGetVersion, (int*))                                                \
  X(error_name, cuGetErrorName, (Code, const char**))                                          \
  X(error_text, cuGetErrorString, (Code, const char**))                                        \
  X(device_count, cuDeviceGetCount, (int*))                                                    \
  X(device, cuDeviceGet, (Device*, int))                                                       \
  X(device_name, cuDeviceGetName, (char*, int, Device))                                        \
  X(device_attribute, cuDeviceGetAttribute, (int*, Option, Device))                            \
  X(device_bytes, cuDeviceTotalMem_v2, (std::size_t*, Device))                                 \
  X(pci_bus_id, cuDeviceGetPCIBusId, (char*, int, Device))                                     \
  X(can_access_peer, cuDeviceCanAccessPeer, (int*, Device, Device))                            \
  X(retain_context, cuDevicePrimaryCtxRetain, (ContextHandle**, Device))                       \
  X(release_context, cuDevicePrimaryCtxRelease_v2, (Device))                                   \
  X(context_state, cuDevicePrimaryCtxGetState, (Device, unsigned*, int*))                      \
  X(push_context, cuCtxPushCurrent_v2, (ContextHandle*))                                       \
  X(pop_context, cuCtxPopCurrent_v2, (ContextHandle**))                                        \
  X(current_device, cuCtxGetDevice, (Device*))                                                 \
  X(allocate, cuMemAlloc_v2, (Address*, std::size_t))                                          \
  X(free, cuMemFree_v2, (Address))                                                             \
  X(allocate_in_order, cuMemAllocAsync, (Address*, std::size_t, StreamHandle*))                \
  X(free_in_order, cuMemFreeAsync, (Address, StreamHandle*))                                   \
  X(default_pool, cuDeviceGetDefaultMemPool, (PoolHandle**, Device))                           \
  X(pool_attribute, cuMemPoolGetAttribute, (PoolHandle*, Option, void*))                       \
  X(set_pool_attribute, cuMemPoolSetAttribute, (PoolHandle*, Option, void*))                   \
  X(allocate_host, cuMemHostAlloc, (void**, std::size_t, unsigned))                            \
  X(free_host, cuMemFreeHost, (void*))                                                         \
  X(copy_to_host, cuMemcpyDtoHAsync_v2, (void*, Address, std::size_t, StreamHandle*))          \
  X(copy_to_device, cuMemcpyHtoDAsync_v2, (Address, const void*, std::size_t, StreamHandle*))  \
  X(copy_on_device, cuMemcpyDtoDAsync_v2, (Address, Address, std::size_t, StreamHandle*))      \
  X(fill, cuMemsetD8Async, (Address, unsigned char, std::size_t, StreamHandle*))               \
  X(address_attribute, cuPointerGetAttribute, (void*, Option, Address))                        \
  X(priority_range, cuCtxGetStreamPriorityRange, (int*, int*))                                 \
  X(create_stream, cuStreamCreateWithPriority, (StreamHandle**, unsigned, int))                \
  X(destroy_stream, cuStreamDestroy_v2, (StreamHandle*))                                       \
  X(wait_for_stream, cuStreamSynchronize, (StreamHandle*))                                     \
  X(launch_host_function, cuLaunchHostFunc, (StreamHandle*, void (*)(void*), void*))           \
  X(capture_status, cuStreamIsCapturing, (StreamHandle*, int*))                                \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (Option*))                       \
  X(create_event, cuEventCreate, (EventHandle**, unsigned))                                    \
  X(destroy_event, cuEventDestroy_v2, (EventHandle*))                                          \
  X(record_event, cuEventRecord, (EventHandle*, StreamHandle*))                                \
  X(query_event, cuEventQuery, (EventHandle*))                                                 \
  X(wait_for_event, cuStreamWaitEvent, (StreamHandle*, EventHandle*, unsigned))                \
  X(elapsed_ms, cuEventElapsedTime, (float*, EventHandle*, EventHandle*))                      \
  X(load_module, cuModuleLoadDataEx, (ModuleHandle**, const void*, unsigned, Option*, void**)) \
  X(unload_module, cuModuleUnload, (ModuleHandle*))                                            \
  X(get_function, cuModuleGetFunction, (FunctionHandle**, ModuleHandle*, const char*))         \
  X(launch,                                                                                    \
    cuLaunchKernel,                                                                            \
    (FunctionHandle*, LIGHTCC_XYZ, LIGHTCC_XYZ, unsigned, StreamHandle*, void**, void**))

// The same, of which an older driver lacks some: CUDA 11.4 and 12.4 brought these.
#define LIGHTCC_CUDA_LATER_FUNCTIONS(X)               \
  X(device_uuid, cuDeviceGetUuid_v2, (Uuid*, Device)) \
  X(load_function, cuFuncLoad, (FunctionHandle*))

// NOLINTBEGIN(bugprone-macro-parentheses): a list of parameters takes none.
#define LIGHTCC_CUDA_MEMBER(member, symbol, arguments) Code(*member) arguments = nullptr;
// NOLINTEND(bugprone-macro-parentheses)

/// The functions, by what they do. Later ones are null where the driver lacks them.
struct Functions {
  LIGHTCC_CUDA_FUNCTIONS(LIGHTCC_CUDA_MEMBER)
  LIGHTCC_CUDA_LATER_FUNCTIONS(LIGHTCC_CUDA_MEMBER)
};
#undef LIGHTCC_CUDA_MEMBER

}  // namespace lightcc::cuda
