// Training steps in virtual time: when the last bucket of a step ends, by fusion strategy.
//
// The sequencer is the real one, and the network is the simplest that has what fusion is about. It
// carries one bucket at a time, in the order of the announcements, and a bucket takes a fixed time
// and a time per byte. A report takes as long to rank 0 as an announcement takes to the last rank.
// Not simulated: ranks that differ, several lanes, the processor time of a bucket.
#pragma once

#include <cstdint>
#include <vector>

#include "lightcc/base/clock.hpp"

namespace lightcc::sim {

/// A gradient in the order in which gradients become ready.
struct TimedGradient {
  Duration ready{};  ///< On all ranks, since the start of the backward pass.
  std::uint64_t bytes = 0;
};

struct BucketNetwork {
  Duration fixed{};           ///< What a bucket takes.
  double seconds_per_byte{};  ///< In addition.
  Duration update{};          ///< From the last rank to rank 0, and from rank 0 to the last rank.

  Duration cost(std::uint64_t bytes) const;
};

/// Consecutive gradients, by their number. A plan has such a number for each of its buckets.
using PlanOfRuns = std::vector<std::size_t>;

enum class StepStrategy : std::uint8_t {
  kNone,
  kAuto,
  kHorovod,
  kPlan,  ///< A list of buckets, each submitted whole when the last of its gradients is ready.
};

struct StepOutcome {
  Duration end{};  ///< When the last bucket ends, since the start of the backward pass.
  std::size_t buckets = 0;
  std::uint64_t bytes = 0;  ///< That travelled.
};

/// Plays steps until the sequencer has seen some, and returns what the last one was like.
/// `plan` is that of kPlan. `pause` lies between the end of a step and the next backward pass.
StepOutcome play_steps(const std::vector<TimedGradient>& gradients,
                       const BucketNetwork& network,
                       StepStrategy strategy,
                       const PlanOfRuns& plan,
                       Duration pause);

/// As torch's DistributedDataParallel cuts: at most 1 MiB first, then at most 25 MiB.
PlanOfRuns plan_by_arrival(const std::vector<TimedGradient>& gradients);

/// The plan whose last bucket ends first, among all plans of runs whose buckets have at most
/// `limit_bytes` (but for a gradient that is larger by itself). It knows when every gradient will
/// become ready. With gradients 1..L ready at r[1] <= ... <= r[L], and S[j] the bytes of the first
/// j, the earliest end is
///
///     f[0] = 0,    f[j] = min over i < j of  max(f[i], r[j] + 2 news) + cost(S[j] - S[i]).
struct BestPlan {
  PlanOfRuns plan;
  Duration end{};  ///< f[L]: nothing that cuts gradients into runs ends earlier.
};
BestPlan best_plan(const std::vector<TimedGradient>& gradients,
                   const BucketNetwork& network,
                   std::uint64_t limit_bytes);

}  // namespace lightcc::sim
