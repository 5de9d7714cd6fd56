#include "lightcc/compression/residual/step_counts.hpp"

#include <algorithm>
#include <limits>

namespace lightcc {
namespace {

// More than any training has. Saved bytes may say anything.
constexpr std::int64_t kMaxSteps = std::numeric_limits<std::int64_t>::max() / 4;

std::int64_t bounded(std::uint64_t steps) {
  return static_cast<std::int64_t>(std::min(steps, static_cast<std::uint64_t>(kMaxSteps)));
}

}  // namespace

std::int64_t StepCounts::ahead(const Key& key, std::uint64_t steps) const {
  const auto found = counts_.find(key);
  if (found == counts_.end()) {
    return bounded(steps);
  }
  const Count& count = found->second;
  return count.begun == count.ended ? bounded(steps) - bounded(count.ended) : count.ahead;
}

std::uint64_t StepCounts::begin(const Key& key, std::int64_t agreed) {
  Count& count = counts_[key];
  count.ahead = std::clamp(agreed, -kMaxSteps, kMaxSteps);
  const std::int64_t steps = bounded(count.begun++) + count.ahead;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(steps, 0));
}

void StepCounts::end(const Key& key) {
  const auto found = counts_.find(key);
  if (found != counts_.end()) {
    ++found->second.ended;
  }
}

void StepCounts::forget(std::uint32_t process_set) {
  std::erase_if(counts_, [&](const auto& item) { return item.first.first == process_set; });
}

}  // namespace lightcc
