// Randomness, injected: the caller owns a generator, and its seed replays everything drawn from it.
//
// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014). Good for
// the choice of paths and for simulated wires; not for secrets, which the caller brings.
#pragma once

#include <cstdint>

namespace harp {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t operator()() {
    state_ += 0x9e3779b97f4a7c15;  // 2^64 divided by the golden ratio, odd: visits every state.
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }
  /// Over 0 .. bound - 1, with a bias below 2^-32 for the small bounds of this library; 0 when
  /// `bound` is 0.
  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : (*this)() % bound; }
  /// Over first .. last, both included.
  std::uint64_t between(std::uint64_t first, std::uint64_t last) {
    return first + below(last - first + 1);
  }
  /// Uniform over [0, 1).
  double unit() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }
  bool chance(double probability) { return unit() < probability; }

 private:
  std::uint64_t state_;
};

}  // namespace harp
