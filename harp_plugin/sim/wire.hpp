// A one-way link with everything that goes wrong on links.
//
//   sender > [dark path][policer][loss] > queue, rate > delay > [damage, copy, detour] > sink
//
// Packets of one path stay in order unless they make a detour. All chances come from the wire's own
// generator, so that two wires do not disturb each other's sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.hpp"
#include "base/time.hpp"
#include "protocol/types.hpp"
#include "sim/simulator.hpp"

namespace harp::sim {

struct WireConfig {
  double bits_per_s = 0;  ///< 0: no serialisation time.
  Duration delay{10000};
  Duration jitter{};                 ///< Added, uniform; order per path is kept.
  std::size_t queue_packets = 1000;  ///< What waits for the rate; more is dropped.
  std::size_t mtu_bytes = 65536;     ///< IP packets above it vanish.
  double loss = 0;
  double burst_start = 0;           ///< Chance that a packet begins a run of losses ...
  std::uint64_t burst_packets = 0;  ///< ... of 1 .. this many, within 100 ms.
  double duplicate = 0;
  double corrupt = 0;  ///< One to three flipped bits, or a wrong length.
  double detour = 0;   ///< Chance of an extra delay of up to detour_delay.
  Duration detour_delay{};
  std::uint64_t dark_paths = 0;   ///< Bit per path that loses everything.
  double policed_bits_per_s = 0;  ///< Token bucket without a queue; 0: none.
  double policer_burst_bytes = 0;
  Time dark_from = kNever;  ///< Everything vanishes between these times.
  Time dark_until = kNever;
};

struct WireStats {
  std::uint64_t packets = 0;
  std::uint64_t delivered = 0;  ///< Copies included.
  std::uint64_t dropped = 0;
  std::uint64_t corrupted = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t detoured = 0;
  std::uint64_t data_bytes_dropped = 0;  ///< Payload of DATA packets.
};

class Wire final : public Actor {
 public:
  using Sink = std::function<void(std::span<const std::byte>, Time)>;

  Wire(Simulator& simulator, const WireConfig& config, std::uint64_t seed);

  void connect(Sink sink) { sink_ = std::move(sink); }
  /// Takes a copy of head and payload.
  void send(PathIndex path, std::span<const std::byte> head, std::span<const std::byte> payload);
  void act(Time now, std::uint64_t token) override;

  WireConfig& config() { return config_; }
  const WireStats& stats() const { return stats_; }

 private:
  using Buffer = std::vector<std::byte>;

  bool is_dropped(PathIndex path, std::size_t ip_bytes);
  bool is_policed(std::size_t ip_bytes);
  void deliver_later(Time at, const Buffer& packet);
  void damage(Buffer& packet);

  Simulator& simulator_;
  WireConfig config_;
  Rng rng_;
  Sink sink_;
  Time busy_until_{};
  std::vector<Time> last_arrival_;  ///< By path.
  std::uint64_t burst_left_ = 0;
  Time burst_until_{};
  double tokens_ = 0;
  Time tokens_at_{};
  std::vector<Buffer> buffers_;  ///< In transit, by token.
  std::vector<std::size_t> free_;
  WireStats stats_;
};

}  // namespace harp::sim
