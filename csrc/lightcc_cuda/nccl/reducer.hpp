// Who combines what NCCL brings from all members: NCCL itself, or kernels of lightcc's. A function
// of what ranks have agreed on, so that all come to the same answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/wire/control_messages.hpp"

#include "lightcc_cuda/nccl/functions.hpp"

namespace lightcc::cuda {

/// What lightcc's kernels combine. The same on all ranks.
struct KernelReductions {
  bool are_loaded = false;     ///< The drivers of all ranks load reduce.cu.
  bool in_rank_order = false;  ///< Reductions of floating-point types are for kernels, too.
  std::size_t piece_bytes = std::size_t{16} << 20;  ///< Of a bucket, that are reduced at a time.
  /// Of all members together, up to which each one combines all: where calls take longer than bytes
  /// do. A guess until it is measured.
  std::size_t max_gathered_bytes = std::size_t{256} << 10;
};

enum class Reducer : std::uint8_t {
  kNone,    ///< The host's plane does it.
  kNccl,    ///< NCCL, in an order of its own.
  kKernel,  ///< kernel_reduction.hpp, in rank order.
};

/// What NCCL calls a type in which it computes; none: int16, uint16 and bool.
std::optional<NcclType> nccl_type_of(DataType dtype);

bool has_factors(double prescale, double postscale);

/// Of a group with so many members.
Reducer reducer_of(const Reduction& reduction,
                   std::size_t members,
                   const KernelReductions& kernels);
/// The same of an all-reduce or a reduce-scatter as it is asked for.
Reducer reducer_of(const Signature& signature,
                   std::size_t members,
                   const KernelReductions& kernels);

/// Whether a NcclGroup runs what has this signature. Compression, Adasum, messages, and reductions
/// with no reducer are for others.
bool is_for_nccl(const Signature& signature,
                 bool is_compressed,
                 std::size_t members,
                 const KernelReductions& kernels);

}  // namespace lightcc::cuda
