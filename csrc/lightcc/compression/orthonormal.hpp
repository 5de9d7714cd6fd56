// Orthonormal vectors out of any, with the same bits on every rank of one build: no SIMD level and
// no thread has a say in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lightcc {

/// Makes `count` vectors of `length`, one after another, orthonormal: Gram and Schmidt's way,
/// modified, each vector twice, with sums in float64. All are finite. A vector that is a sum of
/// those before it, as far as T can tell, becomes zeros. The caller has set IEEE mode.
template <typename T>
void make_orthonormal(std::span<T> vectors, std::size_t count, std::size_t length);

/// The same, where random vectors take the place of those that would become zeros. `count` is at
/// most `length`.
template <typename T>
void make_orthonormal_and_fill(std::span<T> vectors,
                               std::size_t count,
                               std::size_t length,
                               std::uint64_t seed);

}  // namespace lightcc
