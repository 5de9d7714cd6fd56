// Which ready tensors travel together, as pure functions: the same input gives the same bucket.
//
// The sequencer asks for one bucket whenever a lane can take one. So a bucket closes when it is
// full, when a lane is idle, or shortly before the running bucket ends: the first gradient of a
// burst leaves at once, and what becomes ready while it is under way leaves together. kHorovod
// looks for buckets once in a cycle; the sequencer sees to both times.
//
// Plans of gradients (piecewise, scopewise) are made where gradients have names and
// an order (lightcc/fusion); here each bucket of a plan is a group under kPlanned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"

namespace lightcc {

/// What tensors that belong to no plan follow under a LIGHT_FUSION_STRATEGY; empty is auto_fusion.
Result<FusionRule> parse_fusion_strategy(const std::string& name);

/// A tensor that every rank is ready for.
struct FusionCandidate {
  std::uint64_t bytes = 0;
  /// Tensors may share a bucket only when their keys are equal; 0: this one never shares.
  std::uint64_t key = 0;
  /// Members of one all-or-nothing group (same non-zero number).
  std::uint64_t group = 0;
};

/// Indices into `ready` (ascending) of the next bucket; empty only when `ready` is. The first
/// tensor is always in it, under `rule`, which those with the same key share. Tensors keep their
/// order. Under kAuto and kHorovod members of a group are not separated, and a first tensor or
/// group larger than `limit_bytes` is a bucket of its own. A limit of 0 makes kHorovod kNone.
std::vector<std::size_t> next_bucket(std::span<const FusionCandidate> ready,
                                     FusionRule rule,
                                     std::uint64_t limit_bytes);

}  // namespace lightcc
