// Bytes from behind packet headers, which may begin anywhere, for those who read whole elements.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lightcc {

/// Alignment of the largest element.
inline constexpr std::size_t kElementAlignment = 8;

/// Calls `show(offset, part)` for consecutive parts of `bytes`, each aligned to kElementAlignment
/// and, but for the last one, a multiple of 64 bytes long: all at once where it lies, or by way of
/// a block that stays in the L1 cache.
template <typename Show>
void for_each_aligned_part(std::span<const std::byte> bytes, const Show& show) {
  constexpr std::size_t kBlock = 2048;
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kElementAlignment == 0) {
    show(std::size_t{0}, bytes);
    return;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): filled before it is read
  alignas(64) std::array<std::byte, kBlock> block;
  for (std::size_t at = 0; at < bytes.size(); at += kBlock) {
    const auto part = bytes.subspan(at, std::min(kBlock, bytes.size() - at));
    std::ranges::copy(part, block.begin());
    show(at, std::span<const std::byte>(block).first(part.size()));
  }
}

}  // namespace lightcc
