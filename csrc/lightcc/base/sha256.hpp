// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), for the proof of the job secret, and as the
// checksum of saved states.
//
// No table is indexed by secret data, and digests are compared in constant time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/base/sha256_blocks.hpp"

namespace lightcc {

using Sha256Digest = std::array<std::byte, 32>;

/// A running hash. finish() may be called once.
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  Sha256Digest finish();

 private:
  Sha256State state_;
  std::array<std::byte, kSha256BlockBytes> block_{};
  std::size_t filled_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

Sha256Digest sha256(std::span<const std::byte> bytes);

/// A running keyed hash. finish() may be called once.
class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key);
  void update(std::span<const std::byte> bytes) { inner_.update(bytes); }
  Sha256Digest finish();

 private:
  Sha256 inner_;
  Sha256 outer_;
};

/// Whether both are the same, in a time that depends on their lengths alone.
bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace lightcc
