#include "cores.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <vector>

#include "bench.hpp"

namespace harp_cycles {
namespace {

constexpr int kRounds = 20'000;

/// That this process may run on.
std::vector<int> cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  require(::sched_getaffinity(0, sizeof(allowed), &allowed) == 0, "cores that nobody knows");
  std::vector<int> all;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) {
      all.push_back(core);
    }
  }
  return all;
}

/// The calling thread runs on no other one.
void stay_on(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  require(::pthread_setaffinity_np(::pthread_self(), sizeof(one), &one) == 0,
          "a core that cannot be had");
}

/// A line of its own, and the one that is fetched along with it.
struct alignas(128) Line {
  std::atomic<int> round{0};
};

void wait_for(const Line& line, int round) {
  while (line.round.load(std::memory_order_acquire) != round) {
  }
}

double round_trip_ns(int here, int there) {
  Line to;
  Line fro;
  const std::jthread other([&] {
    stay_on(there);
    for (int round = 1; round <= kRounds; ++round) {
      wait_for(to, round);
      fro.round.store(round, std::memory_order_release);
    }
  });
  stay_on(here);
  to.round.store(1, std::memory_order_release);
  wait_for(fro, 1);  // It is there.
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 2; round <= kRounds; ++round) {
    to.round.store(round, std::memory_order_release);
    wait_for(fro, round);
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / (kRounds - 1);
}

}  // namespace

void measure_lines(std::size_t repetitions) {
  const std::vector<int> all = cores();
  std::printf("\n| cores | a cache line to and fro, ns |\n|---|---|\n");
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      std::vector<double> times;
      for (std::size_t repetition = 0; repetition < repetitions; ++repetition) {
        std::jthread([&] { times.push_back(round_trip_ns(all[i], all[j])); }).join();
      }
      std::ranges::sort(times);
      std::printf("| %d and %d | %.0f |\n", all[i], all[j], times[times.size() / 2]);
    }
  }
}

}  // namespace harp_cycles
