#include "lightcc/base/sha256.hpp"

#include <algorithm>

namespace lightcc {
namespace {

// The first 32 bits of the fractional parts of the square roots of the first 8 primes.
constexpr Sha256State kInitialState = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void compress(Sha256State& state, const std::byte* blocks, std::size_t count) {
  if (const Sha256Compress fast = sha256_compress_x86(); fast != nullptr) {
    fast(state, blocks, count);
  } else {
    sha256_compress_plain(state, blocks, count);
  }
}

}  // namespace

Sha256::Sha256() : state_(kInitialState) {}

void Sha256::update(std::span<const std::byte> bytes) {
  total_bytes_ += bytes.size();
  while (!bytes.empty()) {
    std::size_t count = bytes.size() - bytes.size() % block_.size();
    if (filled_bytes_ == 0 && count > 0) {
      compress(state_, bytes.data(), count / block_.size());
    } else {
      count = std::min(bytes.size(), block_.size() - filled_bytes_);
      std::ranges::copy(bytes.first(count), block_.data() + filled_bytes_);
      filled_bytes_ += count;
      if (filled_bytes_ == block_.size()) {
        compress(state_, block_.data(), 1);
        filled_bytes_ = 0;
      }
    }
    bytes = bytes.subspan(count);
  }
}

Sha256Digest Sha256::finish() {
  const std::uint64_t total_bits = total_bytes_ * 8;
  constexpr std::size_t kLengthBytes = 8;
  std::array<std::byte, kSha256BlockBytes> padding{};
  padding[0] = std::byte{0x80};
  // One mark, then zeros up to 8 bytes before the end of a block.
  const std::size_t count = filled_bytes_ < kSha256BlockBytes - kLengthBytes
                                ? kSha256BlockBytes - kLengthBytes - filled_bytes_
                                : 2 * kSha256BlockBytes - kLengthBytes - filled_bytes_;
  update(std::span(padding).first(count));
  std::array<std::byte, kLengthBytes> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>(total_bits >> (56 - 8 * i));
  }
  update(length);
  Sha256Digest digest{};
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

HmacSha256::HmacSha256(std::span<const std::byte> key) {
  std::array<std::byte, 64> padded{};
  if (key.size() > padded.size()) {
    std::ranges::copy(sha256(key), padded.begin());
  } else {
    std::ranges::copy(key, padded.begin());
  }
  std::array<std::byte, 64> pad{};
  std::ranges::transform(padded, pad.begin(), [](std::byte b) { return b ^ std::byte{0x36}; });
  inner_.update(pad);
  std::ranges::transform(padded, pad.begin(), [](std::byte b) { return b ^ std::byte{0x5c}; });
  outer_.update(pad);
}

Sha256Digest HmacSha256::finish() {
  outer_.update(inner_.finish());
  return outer_.finish();
}

bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) {
    return false;
  }
  // volatile: the compiler may not stop at the first difference.
  volatile unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = difference | std::to_integer<unsigned>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace lightcc
