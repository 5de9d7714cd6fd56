#include "lightcc/base/usable_cores.hpp"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fstream>

namespace lightcc {
namespace {

// Words are read, as "max" and "-1" stand for no limit.
std::optional<double> limit_in(const std::string& folder) {
  std::string quota;
  double period = 0;
  if (std::ifstream(folder + "/cpu.max") >> quota >> period ||
      (std::ifstream(folder + "/cpu.cfs_quota_us") >> quota &&
       std::ifstream(folder + "/cpu.cfs_period_us") >> period)) {
    const double microseconds = std::strtod(quota.c_str(), nullptr);
    if (microseconds > 0 && period > 0) {
      return microseconds / period;
    }
  }
  return std::nullopt;
}

// Where the group of a line "4:cpu,cpuacct:/a/b", or "0::/a/b" of v2, lies below the root.
std::optional<std::string> cpu_group(const std::string& line) {
  const std::size_t first = line.find(':');
  const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
  if (second == std::string::npos) {
    return std::nullopt;
  }
  const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
  std::string group = line.substr(second + 1);
  if (controllers == ",,") {
    return group;
  }
  // In v1 the folder has the controllers' names, or links of one name each.
  return controllers.find(",cpu,") == std::string::npos ? std::nullopt
                                                        : std::optional("/cpu" + group);
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root, const std::string& membership) {
  std::optional<double> quota;
  std::ifstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    std::optional<std::string> group = cpu_group(line);
    while (group.has_value()) {
      if (const auto limit = limit_in(root + *group); limit.has_value()) {
        quota = std::min(quota.value_or(*limit), *limit);
      }
      // The groups above count as well. In a container they are not there.
      const std::size_t slash = group->rfind('/');
      group = slash == std::string::npos ? std::nullopt : std::optional(group->substr(0, slash));
    }
  }
  return quota;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const auto quota = cpu_quota("/sys/fs/cgroup", "/proc/self/cgroup"); quota.has_value()) {
    cores = std::min(cores, static_cast<int>(*quota));
  }
  return std::max(1, cores);
}

}  // namespace lightcc
