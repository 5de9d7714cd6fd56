// What a measurement moves: how large packets, bursts, messages and their buffers are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.hpp"
#include "protocol/packet.hpp"

namespace harp_cycles {

/// Ethernet, preamble and gap, which no header counts.
inline constexpr std::size_t kWireOverheadBytes = 38;
/// That a stack takes in a turn.
inline constexpr std::size_t kMaxTakenPackets = 64;
/// Of the time that both ends are told, from one burst to the next.
inline constexpr harp::Duration kBurstInterval{50'000};
/// The pacer's: a whole burst in every interval, and not one packet more.
inline constexpr double kBytesPerS = 36.8e9;
/// That this program lets one end work after the other is neither congestion nor loss.
inline constexpr harp::Duration kPatience{1'000'000'000};

struct Shape {
  std::size_t mtu_bytes = 1500;
  std::uint16_t pss = 1408;
  std::size_t burst_packets = 0;    ///< That the pacer lets go at once.
  std::size_t batch_packets = 0;    ///< That are under way before the other end takes them.
  std::size_t message_packets = 0;  ///< All of them full.
  std::size_t sources = 1;          ///< Buffers of a message each.
  std::size_t destinations = 1;
  std::size_t outstanding = 1;  ///< Messages that are posted at a time.

  /// As the pacer counts.
  std::size_t packet_bytes() const { return pss + harp::kHeaderBytes + harp::kIpUdpBytes; }
  std::size_t message_bytes() const { return message_packets * pss; }
  std::size_t buffer_bytes() const { return (sources + destinations) * message_bytes(); }
  /// Slots of the ring between two stacks.
  std::size_t ring_packets() const;
};

/// Of this processor's second level of cache; 1 MiB where it does not say.
std::size_t l2_bytes();

/// Everything is touched again soon, and fits into the second level of cache.
Shape hot_shape(std::size_t mtu_bytes);
/// Sources and destinations of `bytes` each; half as many bytes are under way at a time, so that
/// packets have left the second level of cache when they are received.
Shape cold_shape(std::size_t mtu_bytes, std::size_t bytes);

}  // namespace harp_cycles
