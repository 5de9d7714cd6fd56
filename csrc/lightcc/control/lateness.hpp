// For which ranks others wait, as only rank 0 can know it.
#pragma once

#include <cstdint>
#include <vector>

namespace lightcc {

/// A rank that keeps the others waiting in every step, for a sustained time.
struct SlowRank {
  std::int32_t rank = -1;
  double factor = 0;  ///< Its own time for a step by the median rank's, lately.
  double slow_s = 0;  ///< For how long it has been slow.
};

struct Lateness {
  /// By rank: how many operations of several ranks it was the last to ask for.
  std::vector<std::uint64_t> last_asked;
  /// Ranks that have not asked for the operation that has waited longest.
  std::vector<std::int32_t> awaited;
  double awaited_s = 0;        ///< How long it has waited.
  std::vector<SlowRank> slow;  ///< By rank.
};

}  // namespace lightcc
