// Where a bucket runs and how: a pure function of what all ranks know, so that all come to the same
// answer.
//
// A bucket runs on the plane of the memory that its tensors lie in, where there is one that takes
// them. Otherwise they are staged in host memory, and it runs on the host's plane. What is left to
// each rank is where it compresses: on the tensors' device, or in host memory
// (compressed_bucket.hpp).
#pragma once

#include <cstdint>
#include <optional>

#include "lightcc/engine/world.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// What a plane is to the buckets of one process set.
struct PlaneFacts {
  const char* flat_name = "";  ///< As a timeline calls what does not run on two levels.
  /// What is larger runs flat; none: everything does.
  std::optional<std::uint64_t> two_level_max_bytes{};
  /// Buckets are given to a device, in the order of their announcements on all lanes and process
  /// sets. On two levels it runs all-reduces alone.
  bool has_queue = false;
};

struct RouteFacts {
  PlaneFacts host;
  /// The plane of the tensors' memory, if that is not the host's; none: it does not take them.
  std::optional<PlaneFacts> own{};
  bool may_stage = false;         ///< The tensors can be copied to the host and back.
  bool may_compress = false;      ///< The set's tensors can be compressed.
  std::uint64_t piece_bytes = 0;  ///< A staged piece has no more; 0: it may have any size.
};

enum class Algorithm : std::uint8_t { kGroup, kAdasum, kCompressed };

struct Route {
  Carrier carrier = Carrier::kHost;
  Algorithm algorithm = Algorithm::kGroup;
  bool on_levels = false;         ///< On two levels.
  bool has_queue = false;         ///< As PlaneFacts::has_queue.
  std::uint64_t piece_bytes = 0;  ///< Staged in pieces of at most so many bytes; 0: all at once.
  const char* name = "";          ///< As a timeline calls it.

  /// Whose plane it runs on, of a bucket in memory of such a kind.
  MemoryKind plane(MemoryKind kind) const {
    return carrier == Carrier::kNccl ? kind : MemoryKind::kHost;
  }
};

/// `first`: of the bucket's first tensor. `bytes`: of all its tensors on one rank; of an
/// all-gather's result. None: nothing here serves such memory.
std::optional<Route> route(const Signature& first, std::uint64_t bytes, const RouteFacts& facts);

}  // namespace lightcc
