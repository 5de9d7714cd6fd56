// Collectives between ranks that share memory. (The essay is at the top of shm_group.cpp.)
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/transport/shm/doorbell.hpp"

namespace lightcc {

/// The same on all members, except `simd`. Values out of range are moved into it.
struct ShmGroupOptions {
  std::size_t chunk_bytes = std::size_t{256} << 10;  ///< All shares of a pipeline round together.
  int depth = 4;                                     ///< Rounds in flight, 1..64.
  /// An allreduce of at most so many bytes is a direct exchange: everyone publishes all of its
  /// input.
  std::size_t direct_bytes = std::size_t{8} << 10;
  SimdLevel simd = SimdLevel::kPlain;
};

/// What suits a group of `size` members: windows that stay in the second-level cache. `simd` is
/// left at kPlain.
ShmGroupOptions default_shm_options(int size);

/// Bytes of shared memory that a group of `size` members needs.
std::size_t shm_group_bytes(int size, const ShmGroupOptions& options);

/// `memory`: shm_group_bytes() of zero-initialised, 128-byte aligned shared memory, mapped by every
/// member, that outlives the group. `doorbells[i]` wakes member i (its own is not used); there are
/// as many as members.
///
/// A Work dropped before it is done leaves the group unusable: every later Work of it fails.
/// Null when `memory` is too small or misaligned or `rank` is out of range: a bug of the caller.
/// Thread: group and Works belong to the thread that drives the progress loop.
std::unique_ptr<Group> make_shm_group(std::span<std::byte> memory,
                                      int rank,
                                      std::vector<Doorbell> doorbells,
                                      const ShmGroupOptions& options);

}  // namespace lightcc
