#include "sim/tcp_flow.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/time.hpp"
#include "sim/bottleneck.hpp"

namespace harp::sim {
namespace {

constexpr std::uint64_t kReorderPackets = 3;
constexpr Duration kMinTimeout = std::chrono::milliseconds(200);  // Linux.

}  // namespace

TcpFlow::TcpFlow(Simulator& simulator,
                 Bottleneck& link,
                 std::unique_ptr<TcpControl> control,
                 Duration ack_delay)
    : simulator_(simulator),
      link_(link),
      control_(std::move(control)),
      ack_delay_(ack_delay),
      flow_(link.add_flow([this](const Bottleneck::Packet& packet, Time now) {
        ++arrived_;
        simulator_.schedule(now + ack_delay_, *this, kFirstAck + packet.number);
      })) {}

void TcpFlow::run(Time from, Time until) {
  until_ = until;
  simulator_.schedule(from, *this, kStart);
}

void TcpFlow::act(Time now, std::uint64_t token) {
  switch (token) {
    case kStart:
      break;
    case kPacing:
      pacing_is_set_ = false;
      break;
    case kTimer:
      on_timer(now);
      break;
    default:
      on_ack(token - kFirstAck, now);
      break;
  }
  send(now);
}

void TcpFlow::send(Time now) {
  while (now < until_ && in_flight_ < control_->window_packets()) {
    const double rate = control_->pacing_rate();
    if (rate > 0 && now < next_send_) {
      if (!pacing_is_set_) {
        pacing_is_set_ = true;
        simulator_.schedule(next_send_, *this, kPacing);
      }
      return;
    }
    const std::uint32_t burst = rate > 0 ? control_->burst_packets() : 1;
    std::uint32_t count = 0;
    for (; count < burst && in_flight_ < control_->window_packets(); ++count) {
      if (in_flight_ == 0) {
        first_sent_at_ = now;
        delivered_at_ = now;
      }
      link_.send(flow_, kTcpPacketBytes, {.number = first_ + sent_.size(), .bytes = {}});
      sent_.push_back({.at = now,
                       .delivered = delivered_,
                       .delivered_at = delivered_at_,
                       .first_sent_at = first_sent_at_});
      ++in_flight_;
    }
    if (rate > 0) {
      next_send_ =
          std::max(next_send_, now) + Duration(static_cast<std::int64_t>(count / rate * 1e9));
    }
  }
  set_timer(now);
}

void TcpFlow::on_ack(std::uint64_t number, Time now) {
  if (number < first_) {
    return;  // Given up before.
  }
  Sent& packet = sent_[number - first_];
  packet.is_acked = true;
  --in_flight_;
  ++delivered_;
  delivered_at_ = now;
  first_sent_at_ = packet.at;
  backoff_ = 0;
  const Duration rtt = now - packet.at;
  srtt_ = srtt_ == Duration::zero() ? rtt : srtt_ + (rtt - srtt_) / 8;
  const Duration interval = std::max(packet.at - packet.first_sent_at, now - packet.delivered_at);
  TcpAck ack{.now = now,
             .rtt = rtt,
             .delivered = delivered_,
             .delivered_when_sent = packet.delivered,
             .rate = static_cast<double>(delivered_ - packet.delivered) / seconds(interval)};
  ack.lost = find_lost(number);
  ack.in_flight = in_flight_;
  if (in_recovery_ && number >= recovery_ends_) {
    in_recovery_ = false;
    control_->on_recovered();
  }
  if (ack.lost > 0 && !in_recovery_) {
    in_recovery_ = true;
    recovery_ends_ = first_ + sent_.size();
    control_->on_congestion(now, in_flight_);
  }
  control_->on_ack(ack);
  times_out_at_ = kNever;
}

std::uint32_t TcpFlow::find_lost(std::uint64_t acked) {
  std::uint32_t lost = 0;
  while (!sent_.empty() && (sent_.front().is_acked || first_ + kReorderPackets <= acked)) {
    lost += sent_.front().is_acked ? 0 : 1;
    sent_.pop_front();
    ++first_;
  }
  in_flight_ -= lost;
  lost_ += lost;
  return lost;
}

void TcpFlow::set_timer(Time now) {
  if (in_flight_ == 0) {
    times_out_at_ = kNever;
    return;
  }
  if (times_out_at_ == kNever) {
    const Duration timeout = std::max(2 * srtt_, kMinTimeout) * (1 << backoff_);
    times_out_at_ = now + timeout;
  }
  if (!timer_is_set_) {
    timer_is_set_ = true;
    simulator_.schedule(times_out_at_, *this, kTimer);
  }
}

void TcpFlow::on_timer(Time now) {
  timer_is_set_ = false;
  if (now < times_out_at_) {
    return;  // Something was acknowledged since.
  }
  lost_ += in_flight_;
  first_ += sent_.size();
  sent_.clear();
  in_flight_ = 0;
  in_recovery_ = false;
  backoff_ = std::min(backoff_ + 1, 6);
  times_out_at_ = kNever;
  control_->on_timeout(now);
}

}  // namespace harp::sim
