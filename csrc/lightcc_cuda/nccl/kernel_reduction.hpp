// Reductions that lightcc's kernels carry out on a GPU, of what NCCL brings from all members.
//
// NCCL lacks integers of 16 bits, bool, and factors but those of floating-point sums, and the order
// of its additions is its own choice. reduce.cu has all of them. It takes the members' elements in
// rank order, so results have the bits of the host's reduce().
//
// A bucket goes in pieces. An all-reduce of a piece is one of these:
// - A small one, or one of two members: ncclAllGather brings it to all members, and each of them
//   combines all of it.
// - Else it is cut into a share for each member, which gets its own from all others (ncclSend,
//   ncclRecv) and combines it, and ncclAllGather brings the results to all. So a member sends
//   2(n-1)/n of the bytes, as in a ring.
// A reduce-scatter is the first half of the latter.
//
// All of it is queued on the communicator's stream at once, and the host waits for nothing. Each
// call of NCCL is an operation of its own, as kernels between two calls are launched when NCCL has
// taken the first one. Memory for it is that of a few pieces for each communicator, whatever the
// size of the bucket and the number of members. There are at most kMaxReduceSources members.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/collectives/group.hpp"

#include "lightcc_cuda/nccl/comms.hpp"

namespace lightcc::cuda {

/// The members. `comms`, whose kernels are loaded, outlives the Works.
struct KernelReductionSite {
  NcclComms& comms;
  std::shared_ptr<NcclComm> comm;  ///< Made, of this group alone.
  std::size_t rank = 0;
  std::size_t size = 1;
};

/// As Group::allreduce(), of what reducer_of() has for kernels.
std::unique_ptr<Work> start_kernel_allreduce(const KernelReductionSite& site,
                                             std::vector<TensorSpan> tensors,
                                             const Reduction& reduction);

/// What becomes of `shares`, by the member who gets the result of it: in its `out`, which may equal
/// `in`. The other outputs are of no use.
std::unique_ptr<Work> start_kernel_reduce_scatter(const KernelReductionSite& site,
                                                  std::vector<std::vector<TensorSpan>> shares,
                                                  const Reduction& reduction);

}  // namespace lightcc::cuda
