// The planes of one rank: the host's, and at most one for each other kind of memory. Memory may be
// staged: what its plane does not run, or all where it has none, runs on the host's plane.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lightcc/base/knobs.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/host_plane.hpp"
#include "lightcc/engine/plane.hpp"
#include "lightcc/engine/staged/staging.hpp"
#include "lightcc/engine/store_exchange.hpp"
#include "lightcc/engine/world.hpp"

namespace lightcc {

/// Thread: the one that drives the progress loop, but for serves().
class Planes {
 public:
  /// The groups of a process set by memory kind; null where no plane serves that.
  using Lanes = std::array<PlaneLanes*, kMemoryKindCount>;
  using Facts = std::array<std::optional<PlaneFacts>, kMemoryKindCount>;

  /// The host's, and what the options' makers make. `world` outlives them. `bell` is the loop's.
  /// `joining`: null for a world of one rank. Errors: of the makers; kInvalidArgument when two
  /// planes, or two stagings, serve one kind.
  static Result<Planes> make(Membership& world,
                             SimdLevel simd,
                             const WorldOptions& options,
                             const std::shared_ptr<LoopBell>& bell,
                             const Joining* joining);

  bool serves(MemoryKind kind) const {
    return planes_[index_of(kind)] != nullptr || staging_[index_of(kind)] != nullptr;
  }
  HostPlane& host() const { return *host_; }
  const std::shared_ptr<LoopBell>& bell() const { return bell_; }
  /// Null: there is none for such memory.
  Plane* plane(MemoryKind kind) const { return planes_[index_of(kind)].get(); }
  /// Null: there is none for such memory.
  Staging* staging(MemoryKind kind) const { return staging_[index_of(kind)].get(); }
  /// That of one of them; null: none has such.
  const char* what_makes_groups() const;

  // All of them; as in Plane.
  Status add_process_set(std::uint32_t id, const std::vector<std::int32_t>& ranks);
  void remove_process_set(std::uint32_t id);
  Result<bool> make_groups();
  /// Sets `lanes` once every plane has made the groups of the set; false before.
  bool get_lanes(std::uint32_t id, Lanes& lanes);
  Facts facts(std::uint32_t id) const;

  static std::size_t index_of(MemoryKind kind) { return static_cast<std::size_t>(kind); }

 private:
  std::array<std::unique_ptr<Plane>, kMemoryKindCount> planes_;  // By kind; null: not served.
  HostPlane* host_ = nullptr;                                    // One of them.
  std::array<std::shared_ptr<Staging>, kMemoryKindCount> staging_;
  std::shared_ptr<LoopBell> bell_;
};

}  // namespace lightcc
