// A one-way link with everything that goes wrong on links (datapath/impairment.hpp), in simulated
// time. Every wire has a generator of its own, so that two do not disturb each other's sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/time.hpp"
#include "datapath/impairment.hpp"
#include "protocol/types.hpp"
#include "sim/simulator.hpp"

namespace harp::sim {

using WireConfig = ImpairmentConfig;

struct WireStats {
  std::uint64_t packets = 0;
  std::uint64_t delivered = 0;  ///< Copies included.
  std::uint64_t dropped = 0;
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

  WireConfig& config() { return impairment_.config(); }
  const WireStats& stats() const { return stats_; }

 private:
  using Buffer = std::vector<std::byte>;

  void deliver_later(Time at, const Buffer& packet);

  Simulator& simulator_;
  Impairment impairment_;
  Sink sink_;
  std::vector<Buffer> buffers_;  ///< Packets in transit, by token.
  std::vector<std::size_t> free_;
  WireStats stats_;
};

}  // namespace harp::sim
