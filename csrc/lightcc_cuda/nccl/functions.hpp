// NCCL as lightcc calls it. nccl.h is not included, so that building needs no NCCL:
// tools/cuda_abi/nccl_abi.cpp holds these declarations against it.
#pragma once

#include <array>
#include <climits>
#include <cstddef>

#include "lightcc_cuda/driver/functions.hpp"

namespace lightcc::cuda {

/// ncclResult_t.
using NcclCode = int;
/// ncclDataType_t.
using NcclType = int;
/// ncclRedOp_t: one of NCCL's, or one that a call has made.
using NcclOp = int;
/// ncclComm_t points to it.
struct NcclHandle;

/// ncclUniqueId.
struct NcclUniqueId {
  std::array<char, 128> bytes;
};

inline constexpr NcclCode kNcclSuccess = 0;
inline constexpr NcclCode kNcclSystemError = 2;
inline constexpr NcclCode kNcclInternalError = 3;
inline constexpr NcclCode kNcclInvalidArgument = 4;
inline constexpr NcclCode kNcclInvalidUsage = 5;
inline constexpr NcclCode kNcclRemoteError = 6;
inline constexpr NcclCode kNcclInProgress = 7;
inline constexpr NcclType kNcclInt8 = 0;
inline constexpr NcclType kNcclUint8 = 1;
inline constexpr NcclType kNcclInt32 = 2;
inline constexpr NcclType kNcclInt64 = 4;
inline constexpr NcclType kNcclFloat16 = 6;
inline constexpr NcclType kNcclFloat32 = 7;
inline constexpr NcclType kNcclFloat64 = 8;
inline constexpr NcclType kNcclBfloat16 = 9;
inline constexpr NcclOp kNcclSum = 0;
inline constexpr NcclOp kNcclProduct = 1;
inline constexpr NcclOp kNcclMax = 2;
inline constexpr NcclOp kNcclMin = 3;
/// ncclScalarHostImmediate: a factor is read during the call.
inline constexpr int kNcclScalarOfHost = 1;
/// NCCL_SPLIT_NOCOLOR: a rank that is in none of the new communicators.
inline constexpr int kNcclNoColor = -1;

/// The first release that is used, as ncclGetVersion() counts: 2.20.5, which torch 2.4 brings.
inline constexpr int kOldestNccl = 22005;

/// The first release that knows NCCL_LAUNCH_ORDER_IMPLICIT: 2.26.
inline constexpr int kOldestNcclThatOrders = 22600;

/// ncclConfig_t as 2.26 has it. Later ones read the part that `size` says and choose the rest, and
/// earlier ones their own part.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestNccl;
  int blocking = 1;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  /// Before 2.26 these bytes are padding. 2.26 reads them whatever `version` says.
  int traffic_class = INT_MIN;
};
static_assert(offsetof(NcclConfig, magic) == 8 && offsetof(NcclConfig, version) == 12);
static_assert(offsetof(NcclConfig, blocking) == 16 && offsetof(NcclConfig, cga_cluster_size) == 20);
static_assert(offsetof(NcclConfig, min_ctas) == 24 && offsetof(NcclConfig, max_ctas) == 28);
static_assert(offsetof(NcclConfig, net_name) == 32 && offsetof(NcclConfig, split_share) == 40);
static_assert(offsetof(NcclConfig, traffic_class) == 44 && sizeof(NcclConfig) == 48);

// Member, symbol, result, arguments.
#define LIGHTCC_NCCL_FUNCTIONS(X)                                                                \
  X(version, ncclGetVersion, NcclCode, (int*))                                                   \
  X(unique_id, ncclGetUniqueId, NcclCode, (NcclUniqueId*))                                       \
  X(init, ncclCommInitRankConfig, NcclCode, (NcclHandle**, int, NcclUniqueId, int, NcclConfig*)) \
  X(split, ncclCommSplit, NcclCode, (NcclHandle*, int, int, NcclHandle**, NcclConfig*))          \
  X(finalize, ncclCommFinalize, NcclCode, (NcclHandle*))                                         \
  X(destroy, ncclCommDestroy, NcclCode, (NcclHandle*))                                           \
  X(abort, ncclCommAbort, NcclCode, (NcclHandle*))                                               \
  X(async_error, ncclCommGetAsyncError, NcclCode, (NcclHandle*, NcclCode*))                      \
  X(error_text, ncclGetErrorString, const char*, (NcclCode))                                     \
  X(last_error, ncclGetLastError, const char*, (NcclHandle*))                                    \
  X(all_reduce,                                                                                  \
    ncclAllReduce,                                                                               \
    NcclCode,                                                                                    \
    (const void*, void*, std::size_t, NcclType, NcclOp, NcclHandle*, StreamHandle*))             \
  X(reduce,                                                                                      \
    ncclReduce,                                                                                  \
    NcclCode,                                                                                    \
    (const void*, void*, std::size_t, NcclType, NcclOp, int, NcclHandle*, StreamHandle*))        \
  X(broadcast,                                                                                   \
    ncclBroadcast,                                                                               \
    NcclCode,                                                                                    \
    (const void*, void*, std::size_t, NcclType, int, NcclHandle*, StreamHandle*))                \
  X(reduce_scatter,                                                                              \
    ncclReduceScatter,                                                                           \
    NcclCode,                                                                                    \
    (const void*, void*, std::size_t, NcclType, NcclOp, NcclHandle*, StreamHandle*))             \
  X(all_gather,                                                                                  \
    ncclAllGather,                                                                               \
    NcclCode,                                                                                    \
    (const void*, void*, std::size_t, NcclType, NcclHandle*, StreamHandle*))                     \
  X(send,                                                                                        \
    ncclSend,                                                                                    \
    NcclCode,                                                                                    \
    (const void*, std::size_t, NcclType, int, NcclHandle*, StreamHandle*))                       \
  X(recv, ncclRecv, NcclCode, (void*, std::size_t, NcclType, int, NcclHandle*, StreamHandle*))   \
  X(group_start, ncclGroupStart, NcclCode, ())                                                   \
  X(group_end, ncclGroupEnd, NcclCode, ())                                                       \
  X(make_scaled_sum,                                                                             \
    ncclRedOpCreatePreMulSum,                                                                    \
    NcclCode,                                                                                    \
    (NcclOp*, void*, NcclType, int, NcclHandle*))                                                \
  X(destroy_op, ncclRedOpDestroy, NcclCode, (NcclOp, NcclHandle*))

// NOLINTBEGIN(bugprone-macro-parentheses): a list of parameters takes none.
#define LIGHTCC_NCCL_MEMBER(member, symbol, result, arguments) result(*member) arguments = nullptr;
// NOLINTEND(bugprone-macro-parentheses)

/// The functions, by what they do.
struct NcclFunctions {
  LIGHTCC_NCCL_FUNCTIONS(LIGHTCC_NCCL_MEMBER)
};
#undef LIGHTCC_NCCL_MEMBER

}  // namespace lightcc::cuda
