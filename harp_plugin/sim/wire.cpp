#include "sim/wire.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/time.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"
#include "sim/simulator.hpp"

namespace harp::sim {
namespace {

Duration random_duration(Rng& rng, Duration most) {
  return Duration(
      static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(most.count()) + 1)));
}

}  // namespace

Wire::Wire(Simulator& simulator, const WireConfig& config, std::uint64_t seed)
    : simulator_(simulator),
      config_(config),
      rng_(seed),
      last_arrival_(kMaxPaths),
      tokens_(config.policer_burst_bytes) {}

bool Wire::is_policed(std::size_t ip_bytes) {
  if (config_.policed_bits_per_s <= 0) {
    return false;
  }
  const Time now = simulator_.now();
  tokens_ = std::min(config_.policer_burst_bytes,
                     tokens_ + seconds(now - tokens_at_) * config_.policed_bits_per_s / 8);
  tokens_at_ = now;
  if (tokens_ < static_cast<double>(ip_bytes)) {
    return true;
  }
  tokens_ -= static_cast<double>(ip_bytes);
  return false;
}

bool Wire::is_dropped(PathIndex path, std::size_t ip_bytes) {
  const Time now = simulator_.now();
  const bool is_dark = ((config_.dark_paths >> path) & 1) != 0 ||
                       (now >= config_.dark_from && now < config_.dark_until);
  if (ip_bytes > config_.mtu_bytes || is_dark || is_policed(ip_bytes) ||
      rng_.chance(config_.loss)) {
    return true;
  }
  if (burst_left_ == 0 && config_.burst_start > 0 && rng_.chance(config_.burst_start)) {
    burst_left_ = rng_.between(1, config_.burst_packets);
    burst_until_ = now + std::chrono::milliseconds(100);
  }
  if (now >= burst_until_) {
    burst_left_ = 0;
  }
  if (burst_left_ > 0) {
    --burst_left_;
    return true;
  }
  if (config_.bits_per_s <= 0) {
    return false;
  }
  const double waiting_bytes = seconds(busy_until_ - now) * config_.bits_per_s / 8;
  return waiting_bytes > static_cast<double>(config_.queue_packets * ip_bytes);
}

void Wire::send(PathIndex path,
                std::span<const std::byte> head,
                std::span<const std::byte> payload) {
  ++stats_.packets;
  const std::size_t ip_bytes = head.size() + payload.size() + kIpUdpBytes;
  if (is_dropped(path, ip_bytes)) {
    ++stats_.dropped;
    if ((static_cast<unsigned>(head[0]) & 15) == static_cast<unsigned>(PacketType::kData)) {
      stats_.data_bytes_dropped += payload.size();
    }
    return;
  }
  Time at = simulator_.now();
  if (config_.bits_per_s > 0) {
    const double time_s = static_cast<double>(ip_bytes) * 8 / config_.bits_per_s;
    busy_until_ = std::max(busy_until_, at) + Duration(static_cast<std::int64_t>(time_s * 1e9));
    at = busy_until_;
  }
  at += config_.delay + random_duration(rng_, config_.jitter);
  if (config_.detour > 0 && rng_.chance(config_.detour)) {
    at += random_duration(rng_, config_.detour_delay);
    ++stats_.detoured;
  } else {
    at = std::max(at, last_arrival_[path]);
    last_arrival_[path] = at;
  }
  Buffer packet(head.begin(), head.end());
  packet.insert(packet.end(), payload.begin(), payload.end());
  if (config_.duplicate > 0 && rng_.chance(config_.duplicate)) {
    ++stats_.duplicated;
    deliver_later(at + random_duration(rng_, config_.delay), packet);
  }
  if (config_.corrupt > 0 && rng_.chance(config_.corrupt)) {
    ++stats_.corrupted;
    damage(packet);
  }
  deliver_later(at, packet);
}

void Wire::damage(Buffer& packet) {
  const std::uint64_t kind = rng_.below(8);
  if (kind == 0) {
    packet.resize(rng_.below(packet.size()));
  } else if (kind == 1) {
    packet.resize(packet.size() + rng_.between(1, 64), std::byte{0});
  } else {
    for (std::uint64_t flips = rng_.between(1, 3); flips > 0; --flips) {
      packet[rng_.below(packet.size())] ^= static_cast<std::byte>(1U << rng_.below(8));
    }
  }
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
