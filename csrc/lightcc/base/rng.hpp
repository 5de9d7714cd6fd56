// Randomness, injected: the caller owns a generator, and its seed replays everything drawn from it.
//
// The idea is SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators",
// 2014): a counter that walks all 2^64 states, scrambled by a bijection. Good for jitter, test data
// and fault plans. Not for secrets: nonces come from the kernel.
#pragma once

#include <cstdint>
#include <limits>

namespace lightcc {

/// Usable with the distributions of <random>, whose results differ between standard libraries, and
/// with below() and unit(), whose results do not. Thread: one.
class Rng {
 public:
  using result_type = std::uint64_t;

  explicit Rng(std::uint64_t seed) : state_(seed) {}

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }

  result_type operator()() {
    state_ += 0x9e3779b97f4a7c15;  // 2^64 divided by the golden ratio, odd: visits every state.
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }
  /// Uniform over 0 .. bound - 1; 0 when `bound` is 0.
  std::uint64_t below(std::uint64_t bound) {
    if (bound == 0) {
      return 0;
    }
    // Draws below 2^64 mod bound would make small results likelier than large ones.
    const std::uint64_t unfair = (0 - bound) % bound;
    std::uint64_t drawn = (*this)();
    while (drawn < unfair) {
      drawn = (*this)();
    }
    return drawn % bound;
  }
  /// Uniform over [0, 1), in steps of 2^-53.
  double unit() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace lightcc
