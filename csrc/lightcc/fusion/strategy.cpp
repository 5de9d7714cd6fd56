#include "lightcc/fusion/strategy.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

namespace lightcc {
namespace {

constexpr std::array<std::string_view, 4> kPlanned{
    "piecewise_fusion", "scopewise_fusion", "arrival", "model"};

/// What is taken whole or not at all: one tensor, or the members of a group with the same key.
struct Unit {
  std::vector<std::size_t> members;
  std::uint64_t bytes = 0;
};

/// The units with the key of the first tensor, in the order of their first members.
std::vector<Unit> units_like_the_first(std::span<const FusionCandidate> ready) {
  std::vector<Unit> units;
  std::unordered_map<std::uint64_t, std::size_t> unit_of_group;
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const FusionCandidate& tensor = ready[i];
    if (tensor.key != ready.front().key) {
      continue;
    }
    std::size_t place = units.size();
    if (tensor.group != 0) {
      place = unit_of_group.try_emplace(tensor.group, place).first->second;
    }
    if (place == units.size()) {
      units.emplace_back();
    }
    units[place].members.push_back(i);
    units[place].bytes += tensor.bytes;
  }
  return units;
}

}  // namespace

Result<FusionRule> parse_fusion_strategy(const std::string& name) {
  if (name == "none") {
    return FusionRule::kNone;
  }
  if (name == "horovod") {
    return FusionRule::kHorovod;
  }
  if (name.empty() || name == "auto_fusion" ||
      std::ranges::find(kPlanned, name) != kPlanned.end()) {
    return FusionRule::kAuto;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "LIGHT_FUSION_STRATEGY=\"%s\": expected none, auto_fusion, piecewise_fusion, "
                    "scopewise_fusion, arrival, horovod or model",
                    name.c_str());
}

std::vector<std::size_t> next_bucket(std::span<const FusionCandidate> ready,
                                     FusionRule rule,
                                     std::uint64_t limit_bytes) {
  if (ready.empty()) {
    return {};
  }
  const bool alone = ready.front().key == 0 || rule == FusionRule::kNone ||
                     (rule == FusionRule::kHorovod && limit_bytes == 0);
  if (alone) {
    return {0};
  }
  const std::vector<Unit> units = units_like_the_first(ready);
  std::vector<std::size_t> bucket = units.front().members;
  std::uint64_t total = units.front().bytes;
  if (rule != FusionRule::kPlanned) {
    for (std::size_t i = 1; i < units.size(); ++i) {
      if (total <= limit_bytes && units[i].bytes <= limit_bytes - total) {
        bucket.insert(bucket.end(), units[i].members.begin(), units[i].members.end());
        total += units[i].bytes;
      }
    }
    std::ranges::sort(bucket);
  }
  return bucket;
}

}  // namespace lightcc
