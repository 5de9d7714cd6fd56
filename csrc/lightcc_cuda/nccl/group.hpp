// Collectives that NCCL carries out, on memory of one GPU.
//
// A bucket is one call, packed where that is needed (packing.hpp), or several. NCCL chooses
// algorithm and order of reduction, so the last bits of floating-point results may differ from the
// host's. They are the same on all members. What NCCL does not reduce is for the host's plane.
#pragma once

#include <memory>

#include "lightcc/collectives/group.hpp"
#include "lightcc/wire/control_messages.hpp"

#include "lightcc_cuda/nccl/comms.hpp"

namespace lightcc::cuda {

/// Whether such a group runs what has this signature, if it is not compressed. Adasum, messages,
/// and reductions that NCCL does not have are for others. A function of what ranks have agreed on,
/// so that all come to the same answer.
bool is_for_nccl(const Signature& signature);

/// `comm` is made, has `size` members, and is of this group alone; `rank` is this one's index.
/// `comms` outlives the group. A Work that fails, or is dropped before its end, ends all of them.
std::unique_ptr<Group> make_nccl_group(NcclComms& comms,
                                       std::shared_ptr<NcclComm> comm,
                                       int rank,
                                       int size);

}  // namespace lightcc::cuda
