#include "datapath/impairment.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.hpp"

namespace harp {
namespace {

constexpr std::size_t kPaths = 64;

Duration random_duration(Rng& rng, Duration maximum) {
  return Duration(
      static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(maximum.count()) + 1)));
}

}  // namespace

Impairment::Impairment(const ImpairmentConfig& config, std::uint64_t seed)
    : config_(config), rng_(seed), last_arrival_(kPaths), tokens_(config.policer_burst_bytes) {}

bool Impairment::is_policed(std::size_t ip_bytes, Time now) {
  if (config_.policed_bits_per_s <= 0) {
    return false;
  }
  tokens_ = std::min(config_.policer_burst_bytes,
                     tokens_ + seconds(now - tokens_at_) * config_.policed_bits_per_s / 8);
  tokens_at_ = now;
  if (tokens_ < static_cast<double>(ip_bytes)) {
    return true;
  }
  tokens_ -= static_cast<double>(ip_bytes);
  return false;
}

bool Impairment::is_dropped(std::size_t path, std::size_t ip_bytes, Time now) {
  const bool is_dark = ((config_.dark_paths >> path) & 1) != 0 ||
                       (now >= config_.dark_from && now < config_.dark_until);
  if (ip_bytes > config_.mtu_bytes || is_dark || is_policed(ip_bytes, now) ||
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

std::optional<Impairment::Fate> Impairment::decide(std::size_t path,
                                                   std::size_t ip_bytes,
                                                   Time now) {
  if (is_dropped(path, ip_bytes, now)) {
    return std::nullopt;
  }
  Fate fate{.at = now, .copy_at = std::nullopt};
  if (config_.bits_per_s > 0) {
    const double time_s = static_cast<double>(ip_bytes) * 8 / config_.bits_per_s;
    busy_until_ = std::max(busy_until_, now) + Duration(static_cast<std::int64_t>(time_s * 1e9));
    fate.at = busy_until_;
  }
  fate.at += config_.delay + random_duration(rng_, config_.jitter);
  if (config_.detour > 0 && rng_.chance(config_.detour)) {
    fate.at += random_duration(rng_, config_.detour_delay);
  } else {
    fate.at = std::max(fate.at, last_arrival_[path]);
    last_arrival_[path] = fate.at;
  }
  if (config_.duplicate > 0 && rng_.chance(config_.duplicate)) {
    fate.copy_at = fate.at + random_duration(rng_, config_.delay);
  }
  fate.is_damaged = config_.corrupt > 0 && rng_.chance(config_.corrupt);
  return fate;
}

void Impairment::damage(std::vector<std::byte>& packet) {
  const std::uint64_t kind = rng_.below(8);
  if (kind == 0 && !packet.empty()) {
    packet.resize(rng_.below(packet.size()));
  } else if (kind <= 1 || packet.empty()) {
    packet.resize(packet.size() + rng_.between(1, 64), std::byte{0});
  } else {
    // An odd number of flips cannot undo itself.
    for (std::uint64_t flips = 1 + 2 * rng_.below(2); flips > 0; --flips) {
      packet[rng_.below(packet.size())] ^= static_cast<std::byte>(1U << rng_.below(8));
    }
  }
}

}  // namespace harp
