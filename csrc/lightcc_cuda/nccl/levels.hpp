// All-reduces on two levels that are both NCCL's: within blocks, and between them.
//
// A bucket is cut as on every two levels (lightcc/collectives/grid_group.cpp). Of each chunk the
// members of a block scatter their sums, members of one position all-reduce their shards, and the
// block gathers them. The host waits for nothing in between: all that is one operation, whose steps
// are planned first, in the order of the pipeline,
//
//   S0 X0  S1 X1  G0 S2 X2  G1 S3 X3  ...  and the remaining gathers,
//
// where S(i) scatters chunk i, X(i) is between blocks, and G(i) gathers. All ranks call NCCL in
// this order. Where NCCL begins operations of several communicators in the order of calls, X(i) are
// on a stream of their own: X(i) waits for S(i), and G(i) for X(i). So chunk i+1 is scattered, and
// chunk i-1 gathered, while chunk i is between blocks. Else all steps are on one stream.
//
// S and G share a stream. They are of one communicator, whose kernels NCCL runs one after another.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "lightcc/collectives/grid_group.hpp"
#include "lightcc/collectives/group.hpp"

#include "lightcc_cuda/nccl/comms.hpp"

namespace lightcc::cuda {

/// Communicators that are made, of the same lane.
struct LevelComms {
  std::shared_ptr<NcclComm> block;  ///< Of this member's block.
  /// Of the members with this one's position in their blocks; beside that of the block.
  std::shared_ptr<NcclComm> across;
};

/// `flat`, of make_nccl_group(), runs what the levels do not: all but all-reduces, and those of
/// more than `options.max_bytes`. `comms` outlives the group. A Work that fails, or is dropped
/// before its end, ends all communicators.
std::unique_ptr<Group> make_nccl_levels(NcclComms& comms,
                                        std::unique_ptr<Group> flat,
                                        const LevelComms& of,
                                        const GridPosition& position,
                                        GridGroupOptions options);

}  // namespace lightcc::cuda
