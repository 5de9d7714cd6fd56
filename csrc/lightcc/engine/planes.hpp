// The planes of one rank: the host's, and at most one for each other kind of memory. Memory may be
// staged instead: what lies there runs on the host's plane.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lightcc/base/knobs.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/host_plane.hpp"
#include "lightcc/engine/plane.hpp"
#include "lightcc/engine/staging.hpp"
#include "lightcc/engine/world.hpp"

namespace lightcc {

/// Thread: the one that drives the progress loop, but for serves().
class Planes {
 public:
  /// The groups of a process set by memory kind; null where nothing serves that.
  using Groups = std::array<PlaneGroups*, kMemoryKindCount>;

  /// The host's, and what the options' makers make. `world` outlives them. Errors: of the makers;
  /// kInvalidArgument when two planes serve one kind, or MPI cannot carry the data.
  static Result<Planes> make(Membership& world, SimdLevel simd, const WorldOptions& options);

  bool serves(MemoryKind kind) const {
    return planes_[index_of(kind)] != nullptr || staging(kind) != nullptr;
  }
  /// What the buckets of a kind that is served run on.
  Plane& at(MemoryKind kind) const {
    return staging(kind) != nullptr ? *host_ : *planes_[index_of(kind)];
  }
  /// Null: the kind has a plane of its own, or is not served.
  Staging* staging(MemoryKind kind) const { return staging_[index_of(kind)].get(); }
  HostPlane& host() const { return *host_; }

  // All of them; as in Plane.
  Status add_process_set(std::uint32_t id, const std::vector<std::int32_t>& ranks);
  void remove_process_set(std::uint32_t id);
  Result<bool> make_groups();
  /// Sets `groups` once every plane has made those of the set; false before.
  bool get_groups(std::uint32_t id, Groups& groups);

  static std::size_t index_of(MemoryKind kind) { return static_cast<std::size_t>(kind); }

 private:
  std::array<std::unique_ptr<Plane>, kMemoryKindCount> planes_;  // By kind; null: not served.
  HostPlane* host_ = nullptr;                                    // One of them.
  std::array<std::shared_ptr<Staging>, kMemoryKindCount> staging_;
};

}  // namespace lightcc
