// Holds csrc/lightcc_cuda/nccl/functions.hpp against NVIDIA's nccl.h: every function has as many
// parameters, each of the same size and kind, and every constant has the same value. Compiling it
// is passing (tools/check_nccl_abi.sh).
#include <cstddef>
#include <type_traits>

#include <nccl.h>

#include "lightcc_cuda/nccl/functions.hpp"
#include "same_signature.hpp"

namespace lightcc::cuda {
namespace {

#define LIGHTCC_CHECK(member, symbol, result, arguments) \
  static_assert(Same<decltype(NcclFunctions::member), decltype(&::symbol)>::value, #symbol);
LIGHTCC_NCCL_FUNCTIONS(LIGHTCC_CHECK)

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId) &&
              sizeof(NcclUniqueId) == NCCL_UNIQUE_ID_BYTES);
// 2.20's members, at the same places in all later ones.
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t) &&
              offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version) &&
              offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(NcclConfig, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize) &&
              offsetof(NcclConfig, min_ctas) == offsetof(ncclConfig_t, minCTAs) &&
              offsetof(NcclConfig, max_ctas) == offsetof(ncclConfig_t, maxCTAs) &&
              offsetof(NcclConfig, net_name) == offsetof(ncclConfig_t, netName) &&
              offsetof(NcclConfig, split_share) == offsetof(ncclConfig_t, splitShare));
#if NCCL_VERSION_CODE >= 22602
static_assert(offsetof(NcclConfig, traffic_class) == offsetof(ncclConfig_t, trafficClass));
#endif
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(NcclConfig().magic == kTheirs.magic && kTheirs.blocking == INT_MIN &&
              kTheirs.netName == nullptr && NCCL_VERSION_CODE >= kOldestNccl);
static_assert(kNcclSuccess == ncclSuccess && kNcclSystemError == ncclSystemError &&
              kNcclInternalError == ncclInternalError &&
              kNcclInvalidArgument == ncclInvalidArgument &&
              kNcclInvalidUsage == ncclInvalidUsage && kNcclRemoteError == ncclRemoteError &&
              kNcclInProgress == ncclInProgress);
static_assert(kNcclInt8 == ncclInt8 && kNcclUint8 == ncclUint8 && kNcclInt32 == ncclInt32 &&
              kNcclInt64 == ncclInt64 && kNcclFloat16 == ncclFloat16 &&
              kNcclFloat32 == ncclFloat32 && kNcclFloat64 == ncclFloat64 &&
              kNcclBfloat16 == ncclFloat16 + 3);  // Declared with CUDA's own header alone.
static_assert(kNcclSum == ncclSum && kNcclProduct == ncclProd && kNcclMax == ncclMax &&
              kNcclMin == ncclMin && kNcclScalarOfHost == ncclScalarHostImmediate &&
              kNcclNoColor == NCCL_SPLIT_NOCOLOR);

}  // namespace
}  // namespace lightcc::cuda
