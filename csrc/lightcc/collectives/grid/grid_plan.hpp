// How a two-level operation cuts its data, and in which order a member runs the halves of the
// chunks within its block. Pure functions of what all members share.
//
// A bucket is cut into chunks, and each chunk into one shard per member of a block (SharePlan: at
// multiples of 64 bytes, all alike to within 64 bytes, the last ones too). Within a block, one
// operation follows another; with L chunks of lead they are
//
//   S0 S1 .. S(L-1)  G0 S(L)  G1 S(L+1) ...  and the remaining gathers,
//
// where S(i) is the reduce-scatter of chunk i and G(i) its all-gather. So chunks i+1 .. i+L-1 are
// ready for the other level while G(i) waits for what it has to bring back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lightcc/collectives/bucket_view.hpp"
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

/// The order of the halves within a block.
class GridSchedule {
 public:
  enum class Half : std::uint8_t { kScatter, kGather };
  struct Step {
    Half half = Half::kScatter;
    std::size_t chunk = 0;
    bool operator==(const Step&) const = default;
  };

  /// `lead` of at least 1.
  GridSchedule(std::size_t chunks, std::size_t lead);

  std::size_t chunks() const { return chunks_; }
  /// Chunks between their scatter and the end of their gather at any time: at most so many.
  std::size_t lead() const { return lead_; }
  /// Two for each chunk.
  std::size_t steps() const { return 2 * chunks_; }
  Step step(std::size_t index) const;

 private:
  std::size_t chunks_;
  std::size_t lead_;
};

/// The shards of a bucket.
class GridPlan {
 public:
  /// `members` of a block; chunks of at most `chunk_bytes` (at least 64 bytes for each member).
  GridPlan(std::size_t elements,
           std::size_t element_bytes,
           std::size_t members,
           std::size_t chunk_bytes);

  std::size_t chunks() const { return shares_.chunks(); }
  /// Most bytes of a shard.
  std::size_t shard_bytes() const { return shares_.piece_bytes(); }
  /// What `member` of each block owns of `chunk`.
  ElementRange shard(std::size_t chunk, std::size_t member) const {
    return shares_.piece(chunk, member);
  }

 private:
  SharePlan shares_;
};

}  // namespace lightcc
