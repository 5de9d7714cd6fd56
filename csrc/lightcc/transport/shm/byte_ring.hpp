// A stream of bytes from one process to another through shared memory: one writer, one reader.
//
// Both ends count the bytes they have moved in 64-bit numbers that never wrap in practice; a byte's
// place is its number modulo the capacity, a power of two, so no slot stays empty. Each end
// believes its own count and checks the other's: a count that the other end cannot have reached
// honestly is kPeerFailed, and lengths never leave the ring.
//
// Memory order: the bytes are written before `written` is stored (release) and read after it is
// loaded; likewise `read`. Loads are seq_cst, so that a sleeper's last look cannot miss what was
// published before a Doorbell rang. Ringing is the caller's business.
//
// Not handled: message boundaries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/base/status.hpp"

namespace lightcc {

/// Starts a ring's memory; zero-initialised.
struct alignas(128) ByteRingHeader {
  alignas(128) std::uint64_t written;  ///< By the writer only.
  alignas(128) std::uint64_t read;     ///< By the reader only.
};
static_assert(sizeof(ByteRingHeader) == 256);

/// Bytes of shared memory for a ring of `capacity` bytes.
constexpr std::size_t byte_ring_bytes(std::size_t capacity) {
  return sizeof(ByteRingHeader) + capacity;
}

/// What the two ends have in common.
class ByteRingEnd {
 public:
  /// `memory`: byte_ring_bytes(capacity) of shared memory, 128-byte aligned, zeroed before either
  /// end was made. `capacity` is a power of two. Otherwise every call fails with kInternal.
  ByteRingEnd(std::span<std::byte> memory, std::size_t capacity);

 protected:
  std::size_t position(std::uint64_t count) const {
    return static_cast<std::size_t>(count) & (capacity_ - 1);
  }
  Status corrupt() const;

  ByteRingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint64_t count_ = 0;  // Bytes this end has moved.
};

/// Thread: one. Blocks: never.
class ByteRingWriter : private ByteRingEnd {
 public:
  using ByteRingEnd::ByteRingEnd;
  /// Writes as much of `bytes` as fits and returns how many that were. Errors: kPeerFailed.
  Result<std::size_t> try_write(std::span<const std::byte> bytes);
};

/// Thread: one. Blocks: never.
class ByteRingReader : private ByteRingEnd {
 public:
  using ByteRingEnd::ByteRingEnd;
  /// Reads at most `into.size()` bytes and returns how many there were. Errors: kPeerFailed.
  Result<std::size_t> try_read(std::span<std::byte> into);
};

}  // namespace lightcc
