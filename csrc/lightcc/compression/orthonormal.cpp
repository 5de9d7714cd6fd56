#include "lightcc/compression/orthonormal.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "lightcc/base/rng.hpp"

namespace lightcc {
namespace {

template <typename T>
double dot(const T* a, const T* b, std::size_t length) {
  std::array<double, 8> sums{};  // One would wait for each addition.
  std::size_t i = 0;
  for (; i + sums.size() <= length; i += sums.size()) {
    for (std::size_t j = 0; j < sums.size(); ++j) {
      sums[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
    }
  }
  for (std::size_t j = 0; i < length; ++i, ++j) {
    sums[j] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// Multiplies by a power of two, so that squares neither vanish nor overflow. False: all are zeros.
template <typename T>
bool bring_near_one(T* vector, std::size_t length) {
  T peak{0};
  for (std::size_t i = 0; i < length; ++i) {
    peak = std::max(peak, std::abs(vector[i]));
  }
  if (peak == T{0}) {
    return false;
  }
  const int exponent = std::clamp(std::ilogb(peak), -1000, 1000);
  const double factor = std::ldexp(1.0, -exponent);
  for (std::size_t i = 0; i < length; ++i) {
    vector[i] = static_cast<T>(static_cast<double>(vector[i]) * factor);
  }
  return true;
}

/// Makes vector `index` a unit that is orthogonal to those before it; false: there is none.
template <typename T>
bool make_unit(T* vectors, std::size_t index, std::size_t length) {
  // Of what rounding leaves of a sum of other vectors, times 16.
  constexpr double kNothing = 16.0 * std::numeric_limits<T>::epsilon();
  T* const own = vectors + index * length;
  if (!bring_near_one(own, length)) {
    return false;
  }
  const double norm = std::sqrt(dot(own, own, length));
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t other = 0; other < index; ++other) {
      const T* const done = vectors + other * length;
      const double share = dot(own, done, length);
      for (std::size_t i = 0; i < length; ++i) {
        own[i] = static_cast<T>(static_cast<double>(own[i]) - share * static_cast<double>(done[i]));
      }
    }
  }
  const double left = std::sqrt(dot(own, own, length));
  if (!(left > kNothing * norm)) {
    return false;
  }
  for (std::size_t i = 0; i < length; ++i) {
    own[i] = static_cast<T>(static_cast<double>(own[i]) / left);
  }
  return true;
}

template <typename T>
void draw(T* vector, std::size_t length, Rng& rng) {
  for (std::size_t i = 0; i < length; ++i) {
    vector[i] = static_cast<T>(2.0 * rng.unit() - 1.0);
  }
}

}  // namespace

template <typename T>
void make_orthonormal(std::span<T> vectors, std::size_t count, std::size_t length) {
  for (std::size_t index = 0; index < count; ++index) {
    if (!make_unit(vectors.data(), index, length)) {
      std::fill_n(vectors.data() + index * length, length, T{0});
    }
  }
}

template <typename T>
void make_orthonormal_and_fill(std::span<T> vectors,
                               std::size_t count,
                               std::size_t length,
                               std::uint64_t seed) {
  constexpr int kTries = 8;  // Chance hardly ever fails one.
  Rng rng(seed);
  for (std::size_t index = 0; index < count; ++index) {
    T* const own = vectors.data() + index * length;
    bool is_unit = make_unit(vectors.data(), index, length);
    for (int i = 0; i < kTries && !is_unit; ++i) {
      draw(own, length, rng);
      is_unit = make_unit(vectors.data(), index, length);
    }
    if (!is_unit) {
      std::fill_n(own, length, T{0});
    }
  }
}

template void make_orthonormal(std::span<float>, std::size_t, std::size_t);
template void make_orthonormal(std::span<double>, std::size_t, std::size_t);
template void make_orthonormal_and_fill(std::span<float>, std::size_t, std::size_t, std::uint64_t);
template void make_orthonormal_and_fill(std::span<double>, std::size_t, std::size_t, std::uint64_t);

}  // namespace lightcc
