// Top-k lists that NCCL carries from GPU to GPU.
//
// A step is one operation on the communicator's stream: the launches that compress, ncclAllGather
// of lists in their full length, the launches that add up and end the step, and copies of what
// became of it. The launcher's thread makes all these calls, and waits for none of them.
//
// A list has a place of the size that it has when it is full, which follows from what ranks have
// agreed on. How long it is says its header, which kernels alone read (kernels/merge.hpp).
//
// On two levels a rank has a shard of each tensor, and its lists go to the ranks of the same
// position in other blocks. A step is void if any shard of the tensor is. So before anything is
// added up, the ranks of a block agree on that, by ncclAllReduce of the words that say it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lightcc/compression/device_topk.hpp"

#include "lightcc_cuda/nccl/comms.hpp"
#include "lightcc_cuda/staging/topk_kernels.hpp"

namespace lightcc::cuda {

/// Communicators that are made.
struct TopkComms {
  std::shared_ptr<NcclComm> lists;  ///< Of the ranks whose lists are added up.
  std::shared_ptr<NcclComm> block;  ///< Of those with the other shards; null: there are none.
};

/// `ranks` are the members of `of.lists`, of which this is the one at `own`. `comms`, of a setup
/// that sends lists, and `kernels` outlive it.
std::unique_ptr<DeviceTopk> make_nccl_topk(NcclComms& comms,
                                           TopkComms of,
                                           CudaTopkKernels& kernels,
                                           std::vector<std::int32_t> ranks,
                                           std::size_t own);

}  // namespace lightcc::cuda
