// Which ready tensors travel together, as pure functions: the same input gives the same bucket.
//
// The sequencer asks for one bucket whenever a lane can take one, so a bucket closes when it is
// full or when a lane is idle: the first gradient of a burst leaves at once, and what becomes ready
// while it is under way leaves together. No timer, no cycle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/status.hpp"

namespace lightcc {

enum class FusionStrategy : std::uint8_t {
  kNone,  ///< Every tensor alone.
  kAuto,  ///< Merge what is ready, up to the threshold.
};

Result<FusionStrategy> parse_fusion_strategy(const std::string& name);

/// A tensor that every rank is ready for.
struct FusionCandidate {
  std::uint64_t bytes = 0;
  /// Tensors may share a bucket only when their keys are equal; 0: this one never shares.
  std::uint64_t key = 0;
  /// Members of one all-or-nothing group (same non-zero number) are never separated.
  std::uint64_t group = 0;
};

/// Indices into `ready` (ascending) of the next bucket; empty only when `ready` is. Tensors keep
/// their order; a first tensor or group larger than the threshold is a bucket of its own.
std::vector<std::size_t> next_bucket(std::span<const FusionCandidate> ready,
                                     FusionStrategy strategy,
                                     std::uint64_t threshold_bytes);

}  // namespace lightcc
