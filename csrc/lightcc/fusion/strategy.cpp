#include "lightcc/fusion/strategy.hpp"

namespace lightcc {

Result<FusionStrategy> parse_fusion_strategy(const std::string& name) {
  if (name == "none") {
    return FusionStrategy::kNone;
  }
  if (name == "auto_fusion") {
    return FusionStrategy::kAuto;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "LIGHT_FUSION_STRATEGY=\"%s\": expected none or auto_fusion",
                    name.c_str());
}

std::vector<std::size_t> next_bucket(std::span<const FusionCandidate> ready,
                                     FusionStrategy strategy,
                                     std::uint64_t threshold_bytes) {
  std::vector<std::size_t> bucket;
  if (ready.empty()) {
    return bucket;
  }
  const FusionCandidate& first = ready.front();
  const bool merges = strategy == FusionStrategy::kAuto && first.key != 0;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < ready.size();) {
    // A unit is one tensor, or all members of one group (the sequencer queues them side by side).
    std::size_t end = i + 1;
    std::uint64_t bytes = ready[i].bytes;
    while (ready[i].group != 0 && end < ready.size() && ready[end].group == ready[i].group &&
           ready[end].key == ready[i].key) {
      bytes += ready[end].bytes;
      ++end;
    }
    const bool is_first = bucket.empty();
    if (is_first || (ready[i].key == first.key && total + bytes <= threshold_bytes)) {
      const std::size_t last = is_first && !merges ? i + 1 : end;
      for (std::size_t k = i; k < last; ++k) {
        bucket.push_back(k);
      }
      total += bytes;
    }
    if (!merges) {
      break;
    }
    i = end;
  }
  return bucket;
}

}  // namespace lightcc
