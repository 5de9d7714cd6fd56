// Holds csrc/lightcc_cuda/driver/functions.hpp against NVIDIA's cuda.h: every function has as many
// parameters, each of the same size and kind, and every constant has the same value. Compiling it
// is passing (tools/check_cuda_abi.sh).
#include <cstddef>
#include <string_view>
#include <type_traits>

#include <cuda.h>

#include "lightcc_cuda/driver/functions.hpp"
#include "same_signature.hpp"

#if CUDA_VERSION >= 13000
// Its drivers keep the older function, whose arguments are those of the newer one.
#undef cuEventElapsedTime
extern "C" decltype(cuEventElapsedTime_v2) cuEventElapsedTime;
#endif

namespace lightcc::cuda {
namespace {

// cuda.h renames some functions by macros. A name that it renames is an older function.
#define LIGHTCC_TEXT(symbol) #symbol
#define LIGHTCC_CHECK(member, symbol, arguments)                                         \
  static_assert(Same<decltype(Functions::member), decltype(&::symbol)>::value, #symbol); \
  static_assert(std::string_view(#symbol) == LIGHTCC_TEXT(symbol), #symbol " is renamed");
LIGHTCC_CUDA_FUNCTIONS(LIGHTCC_CHECK)
LIGHTCC_CUDA_LATER_FUNCTIONS(LIGHTCC_CHECK)

static_assert(sizeof(Code) == sizeof(CUresult) && sizeof(Device) == sizeof(CUdevice) &&
              std::is_same_v<Address, CUdeviceptr> && sizeof(Uuid) == sizeof(CUuuid) &&
              sizeof(Option) == sizeof(CUjit_option) &&
              sizeof(Option) == sizeof(CUmemPool_attribute) &&
              sizeof(Option) == sizeof(CUstreamCaptureMode));
static_assert(kSuccess == CUDA_SUCCESS && kErrorInvalidValue == CUDA_ERROR_INVALID_VALUE &&
              kErrorInvalidContext == CUDA_ERROR_INVALID_CONTEXT &&
              kErrorUnsupportedPtx == CUDA_ERROR_UNSUPPORTED_PTX_VERSION &&
              kErrorNotFound == CUDA_ERROR_NOT_FOUND && kErrorNotReady == CUDA_ERROR_NOT_READY &&
              kErrorCaptureImplicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
static_assert(kMajorOfCapability == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR &&
              kMinorOfCapability == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR &&
              kMemoryPools == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED &&
              kReleaseThreshold == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD &&
              kJitErrorLog == CU_JIT_ERROR_LOG_BUFFER &&
              kJitErrorLogBytes == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES &&
              kMemoryKindOfAddress == CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
              kDeviceOfAddress == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING &&
              kEventWithoutTiming == CU_EVENT_DISABLE_TIMING &&
              kEventWithTiming == CU_EVENT_DEFAULT &&
              kHostMemoryForAllContexts == CU_MEMHOSTALLOC_PORTABLE &&
              kMemoryOfDevice == CU_MEMORYTYPE_DEVICE &&
              kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

}  // namespace
}  // namespace lightcc::cuda
