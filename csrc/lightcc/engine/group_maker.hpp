// Makes the Groups of a process set, one per lane: over shared memory where all members share a
// host, over the transport otherwise, and over both where the members form a grid.
//
// A set has one segment on each host where any of its groups needs shared memory: first that of the
// flat groups, then that of each block of the host, all of them lane by lane. It is made by the
// host's leader, member or not, because it is the one rank that has a socket to every other rank of
// the host to pass the descriptor through.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lightcc/base/knobs.hpp"
#include "lightcc/collectives/grid_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/shm_group.hpp"
#include "lightcc/engine/grid_choice.hpp"
#include "lightcc/engine/membership.hpp"

namespace lightcc {

/// The Groups of one process set on this rank, by lane, and the memory under them.
struct LaneGroups {
  ShmSegment segment;
  bool shared = false;     ///< All members are on this host.
  bool two_level = false;  ///< All-reduces run over a grid.
  std::optional<GridPlace> place;
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<std::shared_ptr<GridState>> grids;  ///< Where the members form a grid; else null.
};

/// Thread: the one that drives the progress loop. Blocks: never (but for making a segment).
class GroupMaker {
 public:
  /// `world` outlives the maker and its groups.
  GroupMaker(Membership& world, Knobs knobs, SimdLevel simd);

  /// Where this rank, one of `ranks`, stands when tensors are compressed: in the grid, or as a
  /// block of its own where there is none. Memory is fast: nothing where all share a host.
  std::optional<GridPlace> topk_place(const std::vector<std::int32_t>& ranks) const;
  /// Every rank calls this for every new process set, member or not.
  /// Errors: kSystem when the shared memory cannot be had.
  Status begin(std::uint32_t process_set, const std::vector<std::int32_t>& ranks);
  /// The groups of a set that this rank is a member of, once they can be made.
  Result<std::optional<LaneGroups>> try_finish(std::uint32_t process_set,
                                               const std::vector<std::int32_t>& ranks);
  /// Passes on and takes in segments. True when something moved. kPeerFailed: the other end of a
  /// host socket is gone.
  Result<bool> exchange_segments();

 private:
  /// What the groups of a set are made of. The same on all ranks, but for what is on this host.
  struct Layout {
    bool shared = false;  // All members are on this host: the flat groups need no transport.
    std::optional<Grid> grid;
    std::vector<std::size_t> own_blocks;  // Of the grid, on this host.
  };

  Layout layout_of(const std::vector<std::int32_t>& ranks) const;
  void explain_once(const std::vector<std::int32_t>& ranks);
  bool is_on_this_host(std::int32_t rank) const;
  ShmGroupOptions shm_options(std::size_t members) const;
  std::size_t lane_bytes(std::size_t members) const;
  std::size_t segment_bytes(const Layout& layout, std::size_t members) const;
  Result<bool> send_pending();
  Result<bool> receive_pending();
  LaneGroups make_lanes(std::uint32_t process_set,
                        const std::vector<std::int32_t>& ranks,
                        const Layout& layout,
                        ShmSegment segment) const;
  std::unique_ptr<Group> make_shm(std::span<std::byte> memory,
                                  const std::vector<std::int32_t>& ranks) const;
  std::unique_ptr<Group> make_net(std::uint32_t process_set,
                                  std::uint32_t lane,
                                  const std::vector<std::int32_t>& ranks) const;
  GridLevels make_levels(std::uint32_t process_set,
                         std::uint32_t lane,
                         const Grid& grid,
                         const GridPlace& place,
                         std::span<std::byte> memory) const;

  struct Outgoing {
    std::size_t place = 0;  // Of the receiver on this host.
    std::uint32_t process_set = 0;
    UniqueFd fd;
  };

  Membership& world_;
  const Knobs knobs_;
  SimdLevel simd_;
  bool explained_ = false;
  std::vector<Outgoing> outgoing_;
  std::map<std::uint32_t, ShmSegment> made_;    // By this rank, as leader and member.
  std::map<std::uint32_t, UniqueFd> received_;  // From the leader.
};

}  // namespace lightcc
