// What is said about variables that do nothing: misspelt ones, and Horovod's that have no effect.
//
// Every LIGHT_ name that the table lacks is reported. Of HOROVOD_ names only those are that look
// like a known one: people have HOROVOD_ variables of their own, and Horovod's build has dozens.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lightcc/base/knob_rows.hpp"
#include "lightcc/base/knobs.hpp"

namespace lightcc {
namespace {

using detail::kRows;
using detail::quoted;
using detail::Row;

constexpr std::string_view kOurs = "LIGHT_";
constexpr std::string_view kHorovods = "HOROVOD_";

// Horovod's, beyond the table: what its launcher sets, or its elastic jobs and its build read.
constexpr auto kSilent = std::to_array<std::string_view>({
    "HOROVOD_ALLOW_MIXED_GPU_IMPL",
    "HOROVOD_CMAKE",
    "HOROVOD_CONTROLLER",
    "HOROVOD_CPU_OPERATIONS",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_CUDA_HOME",
    "HOROVOD_DEBUG",
    "HOROVOD_ELASTIC",
    "HOROVOD_ELASTIC_TIMEOUT",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "HOROVOD_GPU",
    "HOROVOD_HOSTNAME",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_LOCAL_VERSION",
    "HOROVOD_NVTX_INCLUDE",
    "HOROVOD_ROCM_HOME",
    "HOROVOD_SECRET_KEY",
    "HOROVOD_SKIP_COMPILE",
});
constexpr auto kSilentPrefixes = std::to_array<std::string_view>({
    "HOROVOD_BUILD_",
    "HOROVOD_GPU_",
    "HOROVOD_NCCL_",
    "HOROVOD_SPARK_",
    "HOROVOD_WITHOUT_",
    "HOROVOD_WITH_",
});

/// Insertions, deletions and replacements that turn `a` into `b` (Levenshtein).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

struct Nearest {
  std::string_view name;
  std::size_t distance = std::numeric_limits<std::size_t>::max();
};

/// The name of the table that is most like `name`, among those that begin with `prefix`.
Nearest nearest_name(std::string_view name, std::string_view prefix) {
  Nearest nearest;
  for (const Row& row : kRows) {
    for (const std::string_view candidate : row.names) {
      if (candidate.starts_with(prefix)) {
        const std::size_t distance = edit_distance(name, candidate);
        if (distance < nearest.distance) {
          nearest = {candidate, distance};
        }
      }
    }
  }
  return nearest;
}

bool is_silent(std::string_view name) {
  return std::ranges::find(kSilent, name) != kSilent.end() ||
         std::ranges::any_of(kSilentPrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

/// Whether a name at that distance from a known one is taken for a misspelling of it.
bool is_misspelling(std::string_view name, std::size_t distance) {
  return distance <= std::min<std::size_t>(3, (name.size() - kHorovods.size()) / 3);
}

/// What to say about `name`, which is not in the table; empty for nothing.
std::string about_unknown(std::string_view name) {
  constexpr std::size_t kLongest = 256;  // Bounds the work that a hostile environment can cause.
  const bool is_ours = name.starts_with(kOurs);
  if (!is_ours && (!name.starts_with(kHorovods) || is_silent(name))) {
    return "";
  }
  const Nearest nearest = nearest_name(name.substr(0, kLongest), is_ours ? kOurs : kHorovods);
  if (!is_ours && !is_misspelling(name, nearest.distance)) {
    return "";
  }
  return "unknown variable " + quoted(name) + "; the nearest known name is " +
         std::string(nearest.name);
}

}  // namespace

std::vector<std::string> knob_warnings(const std::vector<std::string>& names) {
  std::vector<std::string> warnings;
  for (const std::string& name : names) {
    const auto* const row = std::ranges::find_if(kRows, [&](const Row& candidate) {
      return std::ranges::find(candidate.names, name) != candidate.names.end() && !name.empty();
    });
    std::string text;
    if (row == kRows.end()) {
      text = about_unknown(name);
    } else if (row->used_by == "accepted") {
      text = name + " has no effect. " + std::string(row->meaning);
    }
    if (!text.empty()) {
      warnings.push_back(std::move(text));
    }
  }
  return warnings;
}

}  // namespace lightcc
