// How many cores this process can keep busy.
#pragma once

#include <optional>
#include <string>

namespace lightcc {

/// The CPU quota of this process' control groups and those above them, in cores; none: no limit.
/// Sources: cpu.max of cgroup v2; cpu.cfs_quota_us and cpu.cfs_period_us of v1 (Linux kernel,
/// admin-guide/cgroup-v2 and scheduler/sched-bwc). `membership`: a file as /proc/self/cgroup is.
std::optional<double> cpu_quota(const std::string& root, const std::string& membership);

/// By affinity and by quota, rounded down; at least one.
int usable_cores();

}  // namespace lightcc
