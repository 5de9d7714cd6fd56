// The Group of a grid: blocks through one group, usually shared memory, and between blocks others,
// usually over a transport.
// (Essay: grid_group.cpp.)
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/group.hpp"

namespace lightcc {

/// What the Works of a grid share. (grid_state.hpp)
struct GridState;

/// The same on all members.
struct GridGroupOptions {
  std::size_t chunk_bytes = 0;  ///< The pipeline's; 0: by the size of the bucket.
  /// Larger operations are left to the flat group.
  std::size_t max_bytes = std::size_t{1} << 30;
  /// All-reduces of at most so many bytes go through both levels whole, in two stages.
  std::size_t flood_bytes = 0;
  /// Starts larger ones where blocks exchange over a transport, and the levels share the wire.
  /// Empty: in three stages.
  std::function<std::unique_ptr<Work>(
      const std::shared_ptr<GridState>&, BucketView bucket, const Reduction&)>
      exchange = {};
  /// Least bytes of a member's piece of a chunk of a reduce_scatter or allgather, while it has so
  /// many.
  std::size_t min_scattered_bytes = 0;
  std::size_t min_gathered_bytes = 0;
  /// Broadcasts of at most so many bytes are left to the flat group.
  std::size_t flat_broadcast_bytes = 0;
  /// Whether the groups' memory is the host's. Elsewhere only all-reduces run on the levels, since
  /// stages of the others keep data in host memory. All members then cut a bucket into the same
  /// pieces, which begin and end with its tensors.
  bool is_host_memory = true;
  /// Memory of the groups' kind, null where there is none. Empty: the host's.
  std::function<std::shared_ptr<std::byte>(std::size_t bytes)> allocate = {};
  /// Called once, when the levels end, with the reason.
  std::function<void(const Status& why)> on_fail = {};
};

/// Where a member stands in a grid.
struct GridPosition {
  std::size_t blocks = 1;
  std::size_t block = 0;
  std::size_t members = 1;  ///< Each block has so many.
  std::size_t member = 0;
  bool operator==(const GridPosition&) const = default;
};

/// The levels of a grid of m blocks of n members, as one member sees them.
struct GridLevels {
  std::unique_ptr<Group> intra;  ///< The n members of this member's block.
  /// Independent groups of the same m members: those that have this member's position in their
  /// blocks, in the order of the blocks. At least one. Chunks take them in turn, so that one chunk
  /// fills the wire while another one begins or ends.
  std::vector<std::unique_ptr<Group>> inter;
  /// The columns of a member's shares after the first, where the last block is shorter and `inter`
  /// has one group.
  std::vector<std::unique_ptr<Group>> other_columns = {};
  /// By the flat group's numbers. Absent: blocks are alike, and their members neighbours.
  std::optional<GridShape> shape = std::nullopt;
};

LIGHTCC_EXPORT std::shared_ptr<GridState> make_grid_state(GridLevels levels,
                                                          GridGroupOptions options);

/// `flat` has all m * n members; it runs what the levels do not: the halves of an allreduce,
/// alltoall, send, recv, barrier, and what has more than `max_bytes` in all.
///
/// An operation of the levels that fails, or is dropped before its end, ends both: every later one
/// fails with the same Status (kShutDown after a drop), and the peers' with kPeerFailed as far as
/// the transport tells them.
LIGHTCC_EXPORT std::unique_ptr<Group> make_grid_group(std::unique_ptr<Group> flat,
                                                      std::shared_ptr<GridState> state);

}  // namespace lightcc
