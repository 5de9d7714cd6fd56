// Messages to send, where to receive them, and whether they arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shape.hpp"

namespace harp_cycles {

/// Message k has source k and destination k, modulo how many there are.
class Buffers {
 public:
  explicit Buffers(const Shape& shape);

  std::span<const std::byte> source(std::uint64_t message) const;
  /// With both ends wrong, so that a message that does not arrive is noticed.
  std::span<std::byte> prepare(std::uint64_t message);
  /// Throws std::runtime_error unless the message is where it belongs: every byte of the first ones
  /// and of some later ones, of all others both ends.
  void check(std::uint64_t message);

  /// Copies `bytes`, at most a message, to the destinations, round and round: where a loop does
  /// not receive, the caches see what they would see if it did.
  void absorb(std::span<const std::byte> bytes);

  std::uint64_t checked() const { return checked_; }

 private:
  std::span<std::byte> destination(std::uint64_t message);

  std::size_t message_bytes_;
  std::size_t sources_;
  std::size_t destinations_;
  std::vector<std::byte> source_bytes_;
  std::vector<std::byte> destination_bytes_;
  std::size_t absorbed_at_ = 0;
  std::uint64_t checked_ = 0;
};

}  // namespace harp_cycles
