// What the fuzzers of saved states share.
//
// Input: first byte even: the bytes are loaded as they are; odd: the last 32 are replaced by the
// checksum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/sha256.hpp"

namespace lightcc {

inline void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

/// What a fuzzer's input has loaded; `size` is above 0.
inline Bytes saved_state(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kChecksumBytes = 32;
  const auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  Bytes bytes(rest.begin(), rest.end());
  if (data[0] % 2 != 0 && bytes.size() >= kChecksumBytes) {
    const auto covered = std::span(bytes).first(bytes.size() - kChecksumBytes);
    std::ranges::copy(sha256(covered), bytes.end() - kChecksumBytes);
  }
  return bytes;
}

/// What has loaded saves to the same bytes.
template <typename State>
void require_same_bytes(const State& state, const Bytes& bytes) {
  Bytes again;
  require(state.save(again).ok());
  require(again == bytes);
}

}  // namespace lightcc
