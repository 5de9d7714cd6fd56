// The plane of host memory. Its groups run over shared memory where all members share a host, over
// the transport otherwise, and over both where the members form a grid.
//
// A set has one segment on each host where any of its groups needs shared memory: first that of the
// flat groups, then that of each block of the host, all of them lane by lane. It is made by the
// host's leader, member or not, and its descriptor travels by mail.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lightcc/base/knobs.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/shm/shm_group.hpp"
#include "lightcc/engine/grid_choice.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/plane.hpp"

namespace lightcc {

class HostPlane final : public Plane {
 public:
  /// `world` outlives the plane and its groups.
  HostPlane(Membership& world, Knobs knobs, SimdLevel simd);

  MemoryKind memory_kind() const override { return MemoryKind::kHost; }

  Status add_process_set(std::uint32_t process_set,
                         const std::vector<std::int32_t>& ranks) override;
  void remove_process_set(std::uint32_t process_set) override { sets_.erase(process_set); }
  /// Passes on and takes in segments, too. kPeerFailed: a rank of this host is gone.
  Result<bool> make_groups() override;
  /// Segments wait for room in others' mail: make_groups() is to be called again soon.
  bool has_outgoing() const { return !outgoing_.empty(); }
  PlaneLanes* lanes(std::uint32_t process_set) override;
  PlaneFacts facts(std::uint32_t process_set) const override;
  std::optional<Grid> grid_of(const std::vector<std::int32_t>& ranks) const override {
    return layout_of(ranks).grid;
  }
  /// Where this rank, one of `ranks`, stands when tensors are compressed: in the grid, or as a
  /// block of its own where there is none. Memory is fast: nothing where all share a host.
  std::optional<GridPosition> compression_position(const std::vector<std::int32_t>& ranks) const;

  Result<std::shared_ptr<OutputBuffer>> allocate(std::size_t bytes, std::int32_t device) override;
  void copy(std::byte* out, const std::byte* in, std::size_t bytes) override;

  Result<std::unique_ptr<Work>> start_adasum(Group& group,
                                             const TensorSpan& tensor,
                                             const Reduction& reduction) override;

 private:
  /// A set that this rank is a member of.
  struct Set {
    std::vector<std::int32_t> ranks;
    ShmSegment segment;               // Under the groups.
    std::optional<PlaneLanes> lanes;  // Absent while being made.
  };
  /// What the groups of a set are made of. The same on all ranks, but for what is on this host.
  struct Layout {
    bool shared = false;  // All members are on this host: the flat groups need no transport.
    std::optional<Grid> grid;
    std::vector<std::size_t> own_blocks;  // The grid's that are on this host.
  };

  Layout layout_of(const std::vector<std::int32_t>& ranks) const;
  void explain_once(const std::vector<std::int32_t>& ranks);
  bool is_on_this_host(std::int32_t rank) const;
  ShmGroupOptions shm_options(std::size_t members) const;
  std::size_t lane_bytes(std::size_t members) const;
  std::size_t segment_bytes(const Layout& layout, std::size_t members) const;
  Result<bool> try_finish(std::uint32_t process_set, Set& set);
  Result<bool> send_pending();
  Result<bool> receive_pending();
  PlaneLanes make_lanes(std::uint32_t process_set, const Set& set, const Layout& layout) const;
  std::unique_ptr<Group> make_shm(std::span<std::byte> memory,
                                  const std::vector<std::int32_t>& ranks) const;
  std::unique_ptr<Group> make_net(std::uint32_t process_set,
                                  std::uint32_t lane,
                                  const std::vector<std::int32_t>& ranks) const;
  GridLevels make_levels(std::uint32_t process_set,
                         std::uint32_t lane,
                         const Grid& grid,
                         std::span<std::byte> memory) const;

  struct Outgoing {
    std::size_t position = 0;  // Where the receiver is on this host.
    std::uint32_t process_set = 0;
    std::shared_ptr<const UniqueFd> fd;
  };

  Membership& world_;
  const Knobs knobs_;
  SimdLevel simd_;
  std::map<std::uint32_t, Set> sets_;
  bool explained_ = false;
  std::vector<Outgoing> outgoing_;
  std::map<std::uint32_t, UniqueFd> received_;  // From the leader.
};

}  // namespace lightcc
