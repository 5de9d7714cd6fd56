// Numbers that nobody can predict, from the kernel.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace harp {

/// Fills `out`. Throws std::system_error where the kernel has no randomness to give.
void fill_randomly(std::span<std::byte> out);

/// Fills what it is given with random bytes.
using Entropy = std::function<void(std::span<std::byte>)>;

template <typename T>
T random_value(const Entropy& entropy = fill_randomly) {
  T value{};
  entropy(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace harp
