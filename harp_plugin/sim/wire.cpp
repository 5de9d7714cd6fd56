#include "sim/wire.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/time.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"
#include "sim/simulator.hpp"

namespace harp::sim {

Wire::Wire(Simulator& simulator, const WireConfig& config, std::uint64_t seed)
    : simulator_(simulator), impairment_(config, seed) {}

void Wire::send(PathIndex path,
                std::span<const std::byte> head,
                std::span<const std::byte> payload) {
  ++stats_.packets;
  const std::size_t ip_bytes = head.size() + payload.size() + kIpUdpBytes;
  const auto fate = impairment_.decide(path, ip_bytes, simulator_.now());
  if (!fate) {
    ++stats_.dropped;
    if ((static_cast<unsigned>(head[0]) & 15) == static_cast<unsigned>(PacketType::kData)) {
      stats_.data_bytes_dropped += payload.size();
    }
    return;
  }
  Buffer packet(head.begin(), head.end());
  packet.insert(packet.end(), payload.begin(), payload.end());
  if (fate->copy_at) {
    deliver_later(*fate->copy_at, packet);
  }
  if (fate->is_damaged) {
    impairment_.damage(packet);
  }
  deliver_later(fate->at, packet);
}

void Wire::deliver_later(Time at, const Buffer& packet) {
  std::size_t slot = buffers_.size();
  if (free_.empty()) {
    buffers_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  buffers_[slot].assign(packet.begin(), packet.end());
  simulator_.schedule(at, *this, slot);
}

void Wire::act(Time now, std::uint64_t token) {
  ++stats_.delivered;
  Buffer packet;
  packet.swap(buffers_[token]);  // The sink may send, and so make the table grow.
  if (sink_) {
    sink_(packet, now);
  }
  packet.swap(buffers_[token]);
  free_.push_back(token);
}

}  // namespace harp::sim
