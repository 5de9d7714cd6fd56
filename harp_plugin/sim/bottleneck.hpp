// A link that several flows share: one rate, one queue that drops what does not fit, one delay.
//
// What a home router, a shaper of a cloud or `tc tbf` is to the flows that cross it. Packets leave
// in the order in which they came, whose ever they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "base/time.hpp"
#include "sim/simulator.hpp"

namespace harp::sim {

struct BottleneckConfig {
  double bits_per_s = 1e9;
  std::size_t queue_bytes = 125000;  ///< What waits for the rate; a packet beyond it is dropped.
  Duration delay{};                  ///< The way from the queue's end to the receiver.
};

class Bottleneck final : public Actor {
 public:
  /// What crosses: HARP's packets have bytes, those of modelled flows only a number.
  struct Packet {
    std::uint64_t number = 0;
    std::vector<std::byte> bytes;
  };
  using Sink = std::function<void(const Packet&, Time)>;

  struct FlowStats {
    std::uint64_t packets = 0;
    std::uint64_t dropped = 0;
    std::uint64_t delivered_ip_bytes = 0;
  };

  Bottleneck(Simulator& simulator, const BottleneckConfig& config)
      : simulator_(simulator), config_(config) {}

  /// Returns the number of the flow, whose packets go to `sink`.
  std::size_t add_flow(Sink sink);
  void send(std::size_t flow, std::size_t ip_bytes, Packet packet);
  void act(Time now, std::uint64_t token) override;

  /// How long a packet that comes now waits.
  Duration queue_delay() const;
  const FlowStats& stats(std::size_t flow) const { return flows_[flow].stats; }

 private:
  struct Flow {
    Sink sink;
    FlowStats stats;
  };
  struct Crossing {
    std::size_t flow = 0;
    std::size_t ip_bytes = 0;
    Packet packet;
  };

  Duration time_of(std::size_t bytes) const;

  Simulator& simulator_;
  BottleneckConfig config_;
  std::vector<Flow> flows_;
  std::deque<Crossing> crossing_;  ///< They are in the order of arrival.
  Time busy_until_{};
};

}  // namespace harp::sim
