#include "lightcc/fusion/strategy.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <unordered_map>

namespace lightcc {
namespace {

constexpr std::array<std::string_view, 2> kPlanned{"piecewise_fusion", "scopewise_fusion"};

constexpr std::size_t kNoUnit = std::numeric_limits<std::size_t>::max();

/// What is taken whole or not at all: tensors alone, and the members of a group with the same key.
struct Units {
  std::vector<std::size_t> of;       ///< By tensor; kNoUnit: it has another key than the first.
  std::vector<std::uint64_t> bytes;  ///< By unit, in the order of their first members.
};

Units units_like_the_first(std::span<const FusionCandidate> ready) {
  Units units;
  std::unordered_map<std::uint64_t, std::size_t> unit_of_group;
  for (const FusionCandidate& tensor : ready) {
    if (tensor.key != ready.front().key) {
      units.of.push_back(kNoUnit);
      continue;
    }
    std::size_t unit = units.bytes.size();
    if (tensor.group != 0) {
      unit = unit_of_group.try_emplace(tensor.group, unit).first->second;
    }
    if (unit == units.bytes.size()) {
      units.bytes.push_back(0);
    }
    units.of.push_back(unit);
    units.bytes[unit] += tensor.bytes;
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
                    "scopewise_fusion or horovod",
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
  const Units units = units_like_the_first(ready);
  std::vector<std::uint8_t> taken(units.bytes.size(), 0);
  taken.front() = 1;
  std::uint64_t total = units.bytes.front();
  for (std::size_t unit = 1; unit < taken.size() && rule != FusionRule::kPlanned; ++unit) {
    if (total <= limit_bytes && units.bytes[unit] <= limit_bytes - total) {
      taken[unit] = 1;
      total += units.bytes[unit];
    }
  }
  std::vector<std::size_t> bucket;
  for (std::size_t i = 0; i < ready.size(); ++i) {
    if (units.of[i] != kNoUnit && taken[units.of[i]] != 0) {
      bucket.push_back(i);
    }
  }
  return bucket;
}

}  // namespace lightcc
