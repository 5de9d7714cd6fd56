// Collectives that NCCL carries out, on memory of one GPU.
//
// All tensors of a bucket begin together, as a group of NCCL's calls. NCCL chooses algorithm and
// order of reduction, so floating-point results may differ from the host's in the last bits. They
// are the same on all members.
#pragma once

#include <memory>
#include <optional>

#include "lightcc/collectives/group.hpp"
#include "lightcc/wire/control_messages.hpp"

#include "lightcc_cuda/nccl/comms.hpp"

namespace lightcc::cuda {

/// What NCCL calls a type in which it computes; none: int16, uint16 and bool.
std::optional<NcclType> nccl_type_of(DataType dtype);

/// Whether a NcclGroup runs what has this signature. Compression, Adasum, messages, reductions of
/// the types above, and factors that are not those of a floating-point sum are for others.
bool is_for_nccl(const Signature& signature, bool is_compressed);

/// The same of a reduction by itself.
bool is_for_nccl(const Reduction& reduction);

/// `comm` is made, has `size` members, and is of this group alone; `rank` is this one's index.
/// `comms` outlives the group. A Work that fails, or is dropped before its end, ends all of them.
std::unique_ptr<Group> make_nccl_group(NcclComms& comms,
                                       std::shared_ptr<NcclComm> comm,
                                       int rank,
                                       int size);

}  // namespace lightcc::cuda
