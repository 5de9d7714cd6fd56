#include "lightcc/engine/spin_policy.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace lightcc {
namespace {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace

SpinPolicy spin_policy(int local_size, bool networked) {
  SpinPolicy policy{.shuts_gate = networked};
  policy.yield = usable_cores() < local_size + (networked ? 1 : 0);
  const int crowded_us = networked ? 20 : 200;
  policy.foreground = std::chrono::microseconds(policy.yield ? crowded_us : 1000);
  policy.background = std::chrono::microseconds(policy.yield ? 20 : 50);
  return policy;
}

void relax(bool yield) {
  if (yield) {
    (void)::sched_yield();
  } else {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

}  // namespace lightcc
