// Which engine of an interface a UDP port belongs to.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace harp {

/// Thread: any.
class PortOwners {
 public:
  struct Owner {
    std::uint8_t engine = 0;
    std::uint8_t local_port = 0;  ///< Index, as in Route.
  };

  std::optional<Owner> find(std::uint16_t port) const {  // hot
    const unsigned packed = owners_[port].load(std::memory_order_relaxed);
    if (packed == 0) {
      return std::nullopt;
    }
    return Owner{.engine = static_cast<std::uint8_t>((packed - 1) >> 8U),
                 .local_port = static_cast<std::uint8_t>((packed - 1) & 0xffU)};
  }
  void set(std::uint16_t port, Owner owner) {
    const unsigned packed = (unsigned{owner.engine} << 8U) + owner.local_port + 1U;
    owners_[port].store(static_cast<std::uint16_t>(packed), std::memory_order_relaxed);
  }
  void clear(std::uint16_t port) { owners_[port].store(0, std::memory_order_relaxed); }

 private:
  std::array<std::atomic<std::uint16_t>, 65536> owners_{};  ///< 0: nobody's.
};

}  // namespace harp
