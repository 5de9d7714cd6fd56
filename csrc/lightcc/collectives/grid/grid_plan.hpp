// How a two-level operation cuts its data. Pure functions of what all members share.
//
// A bucket is cut into chunks, and each chunk into one shard per member of a block (SharePlan: at
// multiples of 64 bytes, all alike to within 64 bytes, the last ones too). Within a block, one
// operation follows another in the order of ChunkSchedule.
#pragma once

#include <cstddef>
#include <vector>

#include "lightcc/collectives/share_plan.hpp"

namespace lightcc {

/// Chunks of a bucket of `bytes` for which what a chunk costs by itself balances the time in which
/// only one level works: the first scatter and the last gather.
std::size_t grid_chunk_bytes(std::size_t bytes);

/// Most bytes of a member's piece of a chunk, where the members have `counts` elements each: as
/// many chunks as all counts together make, even if one member has them all.
std::size_t grid_piece_bytes(const std::vector<std::size_t>& counts,
                             std::size_t element_bytes,
                             std::size_t chunk_bytes);

/// The shards of a bucket: a chunk's piece is what a member of each block owns of it. Chunks are of
/// at most `chunk_bytes`, but at least 64 bytes for each of the block's `members`.
SharePlan grid_plan(std::size_t elements,
                    std::size_t element_bytes,
                    std::size_t members,
                    std::size_t chunk_bytes);

}  // namespace lightcc
