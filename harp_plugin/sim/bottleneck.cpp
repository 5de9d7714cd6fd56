#include "sim/bottleneck.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/time.hpp"

namespace harp::sim {

std::size_t Bottleneck::add_flow(Sink sink) {
  flows_.push_back({.sink = std::move(sink), .stats = {}});
  return flows_.size() - 1;
}

Duration Bottleneck::queue_delay() const {
  return std::max(busy_until_ - simulator_.now(), Duration::zero());
}

Duration Bottleneck::time_of(std::size_t bytes) const {
  const double time_s = static_cast<double>(bytes) * 8 / config_.bits_per_s;
  return Duration(static_cast<std::int64_t>(time_s * 1e9));
}

void Bottleneck::send(std::size_t flow, std::size_t ip_bytes, Packet packet) {
  FlowStats& stats = flows_[flow].stats;
  ++stats.packets;
  const double waiting_bytes = seconds(queue_delay()) * config_.bits_per_s / 8;
  if (waiting_bytes + static_cast<double>(ip_bytes) > static_cast<double>(config_.queue_bytes)) {
    ++stats.dropped;
    return;
  }
  const Time now = simulator_.now();
  busy_until_ = std::max(busy_until_, now) + time_of(ip_bytes);
  crossing_.push_back({.flow = flow, .ip_bytes = ip_bytes, .packet = std::move(packet)});
  simulator_.schedule(busy_until_ + config_.delay, *this, 0);
}

void Bottleneck::act(Time now, std::uint64_t) {
  const Crossing arrived = std::move(crossing_.front());
  crossing_.pop_front();
  Flow& flow = flows_[arrived.flow];
  flow.stats.delivered_ip_bytes += arrived.ip_bytes;
  flow.sink(arrived.packet, now);
}

}  // namespace harp::sim
