// The level within a block, for compressed tensors of another kind of memory: the block's own group
// scatters and gathers them there, and a member's shard is in host memory between the two. So
// compression and the level between blocks are those of the host, and only shards are copied.
#pragma once

#include <cstdint>
#include <memory>

#include "lightcc/base/export.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/engine/staged/staging.hpp"

namespace lightcc {

/// For CompressedLevels::shards. `block` has the members of the intra level of `host`, and runs on
/// memory of one GPU. Of that memory are all inputs of reduce_scatter_bucket() and outputs of
/// allgather_bucket(), while the member's own result of the first, and its own input of the second,
/// are in host memory. allgather() is of host memory alone. All else is refused. One Work runs at a
/// time. `staging` outlives the group. May block at its start, for memory.
LIGHTCC_EXPORT std::unique_ptr<Group> make_staged_shards(std::shared_ptr<GridState> host,
                                                         std::unique_ptr<Group> block,
                                                         Staging& staging,
                                                         std::int32_t device);

/// For PlaneLane::device_shards. The same, but the member's own result and input are of the
/// GPU's memory, too, so that nothing is copied.
LIGHTCC_EXPORT std::unique_ptr<Group> make_device_shards(std::shared_ptr<GridState> host,
                                                         std::unique_ptr<Group> block);

}  // namespace lightcc
