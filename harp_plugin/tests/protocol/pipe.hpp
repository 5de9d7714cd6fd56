// Two sessions joined by nothing: packets pass at once, unless a test says otherwise.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/listener.hpp"
#include "protocol/packet.hpp"
#include "protocol/session.hpp"

namespace harp {

using std::chrono::microseconds;
using std::chrono::milliseconds;

using PacketBytes = std::vector<std::byte>;

inline Time at_ms(std::int64_t count) {
  return Time(milliseconds(count));
}

inline std::vector<std::byte> pattern(std::size_t count, unsigned seed) {
  std::vector<std::byte> bytes(count);
  std::uint32_t value = seed * 2654435761U + 1;
  for (std::byte& byte : bytes) {
    value = value * 1664525 + 1013904223;
    byte = static_cast<std::byte>(value >> 24);
  }
  return bytes;
}

inline SessionConfig client_config() {
  SessionConfig config;
  config.local_cid = 0xc0000001;
  config.nonce[0] = std::byte{1};
  config.seed = 1;
  config.max_pss = 128;
  config.window_packets = 256;
  config.eager_packets = 16;
  config.initial_psn = 0xfffffff8;
  config.initial_msg = 0xfffffffe;
  return config;
}

inline SessionConfig server_config() {
  SessionConfig config = client_config();
  config.local_cid = 0x50000001;
  config.nonce[0] = std::byte{2};
  config.seed = 2;
  config.initial_psn = 5;
  config.initial_msg = 0;
  return config;
}

inline constexpr std::uint64_t kListenId = 77;
inline const Secret kSecret{std::byte{9}};

inline std::vector<PacketBytes> packets_of(Session& session, Time now) {
  std::vector<PacketBytes> packets;
  TransmitPacket out;
  while (session.poll_transmit(now, out)) {
    PacketBytes& packet = packets.emplace_back(
        out.head.begin(), out.head.begin() + static_cast<std::ptrdiff_t>(out.head_bytes));
    packet.insert(packet.end(), out.payload.begin(), out.payload.end());
  }
  return packets;
}

inline PacketType type_of(const PacketBytes& packet) {
  return static_cast<PacketType>(static_cast<unsigned>(packet[0]) & 15);
}

inline void hand_over(Session& to, std::span<const std::byte> packet, Time now) {
  const Placement placement = to.on_packet(packet, now);
  if (placement.action == Placement::Action::kCopy && !placement.payload.empty()) {
    std::memcpy(placement.to, placement.payload.data(), placement.payload.size());
  }
}

inline std::vector<Event> events_of(Session& session) {
  std::vector<Event> events;
  Event event;
  while (session.poll_event(event)) {
    events.push_back(event);
  }
  return events;
}

/// A client and the server that a Listener makes for it.
struct Pipe {
  using Drops = std::function<bool(bool from_client, const PacketBytes&)>;

  explicit Pipe(const SessionConfig& client_side = client_config(),
                const SessionConfig& server_side = server_config())
      : listener(kListenId, kSecret, 4), server_settings(server_side) {
    client = std::make_unique<Session>(client_side, kSecret, kListenId, now);
  }

  void to_server(const PacketBytes& packet) {
    if (type_of(packet) == PacketType::kSyn) {
      const auto answer = listener.on_packet(packet);
      if (answer.verdict == Listener::Verdict::kNew) {
        server =
            std::make_unique<Session>(server_settings, kSecret, answer.syn, answer.tx_time, now);
        listener.add(answer.syn.nonce, server->local_cid());
        return;
      }
    }
    if (server) {
      hand_over(*server, packet, now);
    }
  }
  /// Passes packets both ways at `now` until there are none. Returns how many.
  int exchange() {
    int passed = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& packet : packets_of(*client, now)) {
        moved = true;
        ++passed;
        if (!drops || !drops(true, packet)) {
          to_server(packet);
        }
      }
      if (server) {
        for (const auto& packet : packets_of(*server, now)) {
          moved = true;
          ++passed;
          if (!drops || !drops(false, packet)) {
            hand_over(*client, packet, now);
          }
        }
      }
    }
    return passed;
  }
  /// Moves time from deadline to deadline until `until`, exchanging at each.
  void run(Time until) {
    exchange();
    for (int steps = 0; now < until; ++steps) {
      ASSERT_LT(steps, 1000000) << "deadlines do not move";
      Time next = client->next_deadline();
      if (server) {
        next = std::min(next, server->next_deadline());
      }
      now = std::min(until, std::max(next, now + Duration(1)));
      exchange();
    }
  }
  void run_for(Duration duration) { run(now + duration); }
  void connect() {
    exchange();
    ASSERT_TRUE(client->is_connected());
    ASSERT_TRUE(server && server->is_connected());
    events_of(*client);
    events_of(*server);
  }

  Time now = at_ms(1000);
  Listener listener;
  SessionConfig server_settings;
  std::unique_ptr<Session> client;
  std::unique_ptr<Session> server;
  Drops drops;
};

}  // namespace harp
