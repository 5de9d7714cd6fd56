#include "ticks.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

namespace harp_cycles {
namespace {

using SteadyClock = std::chrono::steady_clock;

/// Exclusive ors of two registers by turns: each needs the result of the one before it, takes one
/// cycle, and is nothing that a core could leave out.
std::uint64_t chain(std::uint64_t value, std::uint64_t links) {
  constexpr int kUnrolled = 16;
  const std::uint64_t first = value | 1;
  const std::uint64_t second = value | 2;
  for (std::uint64_t i = 0; i < links / kUnrolled; ++i) {
#pragma GCC unroll 8
    for (int pair = 0; pair < kUnrolled / 2; ++pair) {
      value ^= first;
      __asm__ volatile("" : "+r"(value));  // No compiler adds them up.
      value ^= second;
      __asm__ volatile("" : "+r"(value));
    }
  }
  return value;
}

double median(std::array<double, 15> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

Clock measure_clock() {
  constexpr auto kTime = std::chrono::milliseconds(2);
  std::array<double, 15> rates{};
  std::uint64_t min_read = ~std::uint64_t{0};
  for (double& rate : rates) {
    const auto began = SteadyClock::now();
    const std::uint64_t first = ticks();
    auto ended = began;
    while (ended - began < kTime) {
      ended = SteadyClock::now();
    }
    const std::uint64_t last = ticks();
    rate = static_cast<double>(last - first) /
           std::chrono::duration<double, std::nano>(ended - began).count();
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t before = ticks();
      min_read = std::min(min_read, ticks() - before);
    }
  }
  return {.ticks_per_ns = median(rates), .ticks_per_read = static_cast<double>(min_read)};
}

double cycles_per_tick() {
  constexpr std::uint64_t kLinks = 10'000;
  std::array<double, 15> rates{};  // Interrupts fall into few of them.
  std::uint64_t value = 1;
  for (double& rate : rates) {
    const std::uint64_t first = ticks();
    value = chain(value, kLinks);
    rate = static_cast<double>(kLinks) / static_cast<double>(ticks() - first);
  }
  return median(rates);
}

}  // namespace harp_cycles
