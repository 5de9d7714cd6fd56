// Numbers that nobody can predict, from the kernel.
#pragma once

#include <cstddef>
#include <span>

namespace harp {

/// Fills `out`. Throws std::system_error where the kernel has no randomness to give.
void fill_randomly(std::span<std::byte> out);

template <typename T>
T random_value() {
  T value{};
  fill_randomly(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace harp
