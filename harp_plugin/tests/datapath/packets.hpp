// Packets with known contents, and loops that move them through any datapath.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "datapath/datapath.hpp"

namespace harp {

using PacketBytes = std::vector<std::byte>;

struct Received {
  PacketBytes packet;
  Route route;
};

/// Bytes that depend on `seed` and on their place.
inline PacketBytes pattern(std::size_t count, std::uint64_t seed) {
  PacketBytes bytes(count);
  auto value = static_cast<std::uint32_t>(seed * 2654435761U + 1);
  for (std::byte& byte : bytes) {
    value = value * 1664525 + 1013904223;
    byte = static_cast<std::byte>(value >> 24);
  }
  return bytes;
}

/// Sends `packet` as a head of at most 40 bytes and the rest as payload.
inline void send_split(Datapath& from, const Route& route, std::span<const std::byte> packet) {
  constexpr std::size_t kMostHead = 40;
  const std::size_t head = std::min(packet.size(), kMostHead);
  ASSERT_GT(from.room(), 0U);
  from.send(route, packet.first(head), packet.subspan(head));
}

/// What is there now.
inline std::vector<Received> take_burst(Datapath& from) {
  std::vector<Received> burst;
  for (const Arrival& arrival : from.receive()) {
    burst.push_back({{arrival.packet.begin(), arrival.packet.end()}, arrival.route});
  }
  return burst;
}

/// What arrives, until it is `count` packets, or for so long nothing that nothing will come.
inline std::vector<Received> take(Datapath& from, std::size_t count) {
  constexpr int kPatienceMs = 10'000;
  std::vector<Received> all;
  while (all.size() < count) {
    const auto burst = take_burst(from);
    all.insert(all.end(), burst.begin(), burst.end());
    if (burst.empty() && from.prepare_to_wait()) {
      pollfd watched{.fd = from.descriptor(), .events = POLLIN, .revents = 0};
      if (::poll(&watched, 1, kPatienceMs) <= 0) {
        break;
      }
    }
  }
  return all;
}

inline bool is_readable(int descriptor) {
  pollfd watched{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&watched, 1, /*timeout=*/0) == 1;
}

}  // namespace harp
