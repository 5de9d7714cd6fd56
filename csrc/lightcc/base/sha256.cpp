#include "lightcc/base/sha256.hpp"

#include <algorithm>
#include <bit>

namespace lightcc {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// The same of the square roots of the first 8 primes.
constexpr std::array<std::uint32_t, 8> kInitialState = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

std::uint32_t load_big_endian(std::span<const std::byte, 4> bytes) {
  std::uint32_t value = 0;
  for (const std::byte byte : bytes) {
    value = (value << 8) | std::to_integer<std::uint32_t>(byte);
  }
  return value;
}

}  // namespace

Sha256::Sha256() : state_(kInitialState) {}

void Sha256::compress(std::span<const std::byte, kBlockBytes> block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t t = 0; t < 16; ++t) {
    w[t] = load_big_endian(block.subspan(4 * t).first<4>());
  }
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t choice = (e & f) ^ (~e & g);
    const std::uint32_t t1 = h + sum1 + choice + kRoundConstants[t] + w[t];
    const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  const std::array<std::uint32_t, 8> worked = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) {
    state_[i] += worked[i];
  }
}

void Sha256::update(std::span<const std::byte> bytes) {
  total_bytes_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBlockBytes - filled_bytes_);
    std::ranges::copy(bytes.first(count), block_.data() + filled_bytes_);
    bytes = bytes.subspan(count);
    filled_bytes_ += count;
    if (filled_bytes_ == kBlockBytes) {
      compress(block_);
      filled_bytes_ = 0;
    }
  }
}

Sha256Digest Sha256::finish() {
  const std::uint64_t total_bits = total_bytes_ * 8;
  constexpr std::size_t kLengthBytes = 8;
  std::array<std::byte, kBlockBytes> padding{};
  padding[0] = std::byte{0x80};
  // One mark, then zeros up to 8 bytes before the end of a block.
  const std::size_t count = filled_bytes_ < kBlockBytes - kLengthBytes
                                ? kBlockBytes - kLengthBytes - filled_bytes_
                                : 2 * kBlockBytes - kLengthBytes - filled_bytes_;
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
