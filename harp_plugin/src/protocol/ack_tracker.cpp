#include "protocol/ack_tracker.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/serial.hpp"
#include "base/time.hpp"
#include "protocol/ack_body.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

constexpr std::uint32_t kMaxPackets = 32;
constexpr std::uint32_t kMaxBytes = 64 * 1024;

}  // namespace

void AckTracker::on_data(const Header& header,
                         bool duplicate,
                         const Reception& how,
                         Time now) {  // hot
  const std::uint64_t bit = std::uint64_t{1} << header.path;
  PathSeq& newest = newest_[header.path];
  const bool hole = header.path_seq != newest + 1;
  const bool is_newest = (seen_paths_ & bit) == 0 || serial_less(newest, header.path_seq);
  if (is_newest) {
    newest = header.path_seq;
    seen_paths_ |= bit;
    changed_paths_ |= bit;
    astray_paths_ = how.is_astray ? astray_paths_ | bit : astray_paths_ & ~bit;
  }
  if (duplicate && (header.flags & flag::kRetx) != 0 && (header.flags & flag::kAckReq) == 0) {
    ++spurious_;  // A tail probe (kAckReq) may repeat what arrived; a retransmission should not.
  }
  repeats_ = duplicate ? repeats_ + 1 : 0;
  ++packets_;
  bytes_ += header.len;
  if (is_newest) {  // A copy would have its age taken for a round trip.
    echo(header, now - how.waited);
  }
  const bool at_once = duplicate || hole || (header.flags & (flag::kLast | flag::kAckReq)) != 0 ||
                       header.type == PacketType::kFin || packets_ >= kMaxPackets ||
                       bytes_ >= kMaxBytes;
  set_due(at_once ? now : now + delay_);
}

void AckTracker::on_request(const Header& header, const Reception& how, Time now) {
  echo(header, now - how.waited);
  ++repeats_;
  set_due(now);
}

void AckTracker::on_update(Time now) {
  set_due(now + delay_);
}

void AckTracker::echo(const Header& header, Time arrival) {
  echo_path_ = header.path;
  echo_tx_time_ = header.tx_time;
  echo_arrival_ = arrival;
}

void AckTracker::fill(AckBody& ack, Time now) {
  ack.spurious = spurious_;
  ack.echo_path = echo_path_;
  ack.echo_tx_time = echo_tx_time_;
  ack.echo_delay = wire_duration(now - echo_arrival_);
  // All paths where they fit, so that a lost acknowledgement costs nothing; else those with news.
  const bool all_fit = std::popcount(seen_paths_) <= static_cast<int>(kMaxAckPaths);
  const std::uint64_t reported = all_fit ? seen_paths_ : changed_paths_;
  ack.path_count = 0;
  for (std::size_t i = 0; i < kMaxPaths && ack.path_count < kMaxAckPaths; ++i) {
    const std::size_t path = (next_report_ + i) % kMaxPaths;
    if (((reported >> path) & 1) != 0) {
      ack.paths[ack.path_count++] = {.path = static_cast<PathIndex>(path),
                                     .newest = newest_[path],
                                     .is_astray = ((astray_paths_ >> path) & 1) != 0};
      changed_paths_ &= ~(std::uint64_t{1} << path);
    }
  }
  if (!all_fit && ack.path_count > 0) {
    next_report_ = (ack.paths[ack.path_count - 1U].path + 1U) % kMaxPaths;
  }
  packets_ = 0;
  bytes_ = 0;
  due_at_ = kNever;
}

}  // namespace harp
