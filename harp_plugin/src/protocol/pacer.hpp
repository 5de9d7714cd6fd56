// When the next packet may leave: a token bucket, written as the time at which it is full enough.
//
// Sending moves the time forward by what the packet costs at the current rate. The time may lag
// behind the present by one burst, so that timers need not be finer than a burst lasts.
//
// A burst is whole packets: what the rate carries in 50 us, at least 12,000 bytes and at most what
// one segmented send takes. From about 2 Gb/s on an empty bucket fills up before the next packet
// leaves, because the cost of sending and receiving is per batch. The end of what there is to send
// does not wait for a whole batch: the round trip of a message somewhat larger than one would be
// twice as long.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/time.hpp"
#include "base/udp_limits.hpp"
#include "protocol/packet.hpp"

namespace harp {

class Pacer {
 public:
  /// Rate 0 means no limit. A full packet has `packet_bytes`, the headers of IP and UDP included.
  void set_rate(double bytes_per_s, std::size_t packet_bytes) {
    bytes_per_s_ = bytes_per_s;
    ns_per_byte_ = bytes_per_s > 0 ? 1e9 / bytes_per_s : 0;
    const auto packet = static_cast<double>(packet_bytes);
    const double packets =
        std::min(std::max(bytes_per_s * seconds(kBurstTime), kMinBurstBytes) / packet,
                 static_cast<double>(kMaxUdpPayload) / (packet - static_cast<double>(kIpUdpBytes)));
    burst_packets_ = std::clamp(static_cast<int>(packets), 1, static_cast<int>(kMaxSegments));
    // One less, as a packet leaves while the bucket holds anything at all; shorter ones are among
    // them. Even of one packet there is some, for timers that are late.
    burst_cost_ = std::max(burst_packets_ - 1, 1) * cost(packet);
    refill_cost_ = cost(kRefill * std::max(burst_packets_ * packet - kMinBurstBytes, 0.0));
  }
  double rate() const { return bytes_per_s_; }
  /// Full packets that leave at once, at least 1.
  int burst_packets() const { return burst_packets_; }
  bool may_send(Time now, std::size_t waiting_bytes) const {
    return ready_at(waiting_bytes) <= now;
  }
  /// When the next packet may leave, if `waiting_bytes` want to: an empty bucket fills up first,
  /// but not for more than those.
  Time ready_at(std::size_t waiting_bytes) const {
    return level_at_ + std::min(refill_, cost(static_cast<double>(waiting_bytes)));
  }
  void on_sent(std::size_t bytes, Time now) {
    if (bytes_per_s_ <= 0) {
      level_at_ = now;
      refill_ = {};
      return;
    }
    level_at_ = std::max(level_at_, now - burst_cost_) + cost(static_cast<double>(bytes));
    refill_ = level_at_ > now ? refill_cost_ : Duration{};
  }

 private:
  static constexpr double kMinBurstBytes = 8 * 1500;
  static constexpr double kRefill = 0.9;
  static constexpr Duration kBurstTime = std::chrono::microseconds(50);
  /// What is slower still is up to the window.
  static constexpr Duration kMaxWait = std::chrono::milliseconds(20);

  Duration cost(double bytes) const {
    constexpr auto kMaxNs = static_cast<double>(Duration(kMaxWait).count());
    return Duration(static_cast<std::int64_t>(std::min(bytes * ns_per_byte_, kMaxNs)));
  }

  double bytes_per_s_ = 0;
  int burst_packets_ = 1;
  double ns_per_byte_ = 0;  ///< Divided once per rate, not per packet; so are the two below.
  Duration burst_cost_{};
  Duration refill_cost_{};
  Time level_at_{};    ///< When the bucket holds nothing; in the past it holds the time since.
  Duration refill_{};  ///< What an empty bucket waits for behind it.
};

}  // namespace harp
