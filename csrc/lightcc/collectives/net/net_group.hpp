// Collectives between ranks that reach each other through a Transport. (Essay: net_group.cpp.)
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// Sizes must be the same on all members: they derive the messages from them.
struct NetGroupOptions {
  std::size_t chunk_bytes = std::size_t{512} << 10;  ///< In one message of a large transfer.
  /// In one pass of a reduce_scatter or allgather through all levels.
  std::size_t level_chunk_bytes = std::size_t{1} << 20;
  std::size_t narrow_bytes = kNarrowBytes;  ///< Larger operations take wide levels.
  SimdLevel simd = SimdLevel::kPlain;
};

struct NetMember {
  std::uint32_t world_rank = 0;
  TransportHandle handle;
  std::string switches =
      {};  ///< Above its host, from the outermost in (grid_shape); empty: not told.
};

/// `members[rank]` is this one. `transport` outlives the group and its Works, which do not poll it:
/// whoever advances them does. Channels are opened when first used.
///
/// A Work that fails, or is dropped before its end, ends the group: every later Work fails with the
/// same Status (kShutDown after a drop), and the peers' Works with kPeerFailed.
std::unique_ptr<Group> make_net_group(Transport& transport,
                                      std::vector<NetMember> members,
                                      int rank,
                                      std::uint32_t process_set,
                                      std::uint32_t lane,
                                      const NetGroupOptions& options);

}  // namespace lightcc
