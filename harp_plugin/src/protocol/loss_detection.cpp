#include "protocol/loss_detection.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/serial.hpp"
#include "base/time.hpp"
#include "protocol/path_set.hpp"
#include "protocol/rtt.hpp"
#include "protocol/sent_packets.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

constexpr Duration kMinTolerance = std::chrono::microseconds(20);
constexpr Duration kMinTailProbe = std::chrono::microseconds(200);
constexpr Duration kUnknownRtt = std::chrono::milliseconds(20);
constexpr Duration kMaxBaseRto = std::chrono::seconds(1);
constexpr int kMaxTolerance = 8;
constexpr int kCalmRounds = 64;

Duration known(Duration time) {
  return time > Duration::zero() ? time : kUnknownRtt;
}

}  // namespace

Time LossDetector::overtaken_at(const Path& path, const PathSet& paths) const {
  const Duration rtt = path.rtt.has_sample() ? path.rtt.smoothed() : known(paths.best_rtt());
  const Duration tolerance = std::max(rtt / 8, kMinTolerance) * tolerance_eighths_;
  return path.first_mark.at + tolerance;
}

bool LossDetector::on_spurious_report(std::uint32_t total) {
  if (!serial_less(spurious_, total)) {
    return false;
  }
  spurious_ = total;
  tolerance_eighths_ = std::min(2 * tolerance_eighths_, kMaxTolerance);
  calm_rounds_ = 0;
  return true;
}

void LossDetector::on_round() {
  if (tolerance_eighths_ > 1 && ++calm_rounds_ >= kCalmRounds) {
    tolerance_eighths_ /= 2;
    calm_rounds_ = 0;
  }
}

Time LossDetector::next_overtaken(const SentPackets& packets, const PathSet& paths) const {
  Time earliest = kNever;
  for (std::size_t index = 0; index < paths.count(); ++index) {
    const Path& path = paths.at(static_cast<PathIndex>(index));
    if (path.first_mark.is_set() && !packets.list_is_empty(index)) {
      earliest = std::min(earliest, overtaken_at(path, paths));
    }
  }
  return earliest;
}

Time LossDetector::next_timeout(const SentPackets& packets, const PathSet& paths) const {
  Time earliest = kNever;
  for (std::size_t index = 0; index < paths.count(); ++index) {
    if (!packets.list_is_empty(index)) {
      earliest = std::min(
          earliest,
          packets.at(packets.front(index)).sent_at + rto(paths, static_cast<PathIndex>(index)));
    }
  }
  return earliest;
}

Duration LossDetector::rto(const PathSet& paths, PathIndex index) const {
  const SmoothedTime& response = paths.at(index).rtt.response();
  const bool is_known = response.has_sample();
  const Duration smoothed = is_known ? response.smoothed() : known(paths.best_response());
  const Duration deviation = is_known ? response.deviation() : smoothed / 2;
  const Duration base =
      std::clamp(2 * smoothed + std::max(4 * deviation, min_rto_ / 2), min_rto_, kMaxBaseRto);
  const Duration maximum = std::max(max_rto_, 2 * base);
  return std::min(base * (std::int64_t{1} << backoff_), maximum);
}

Time LossDetector::tail_probe_at(const SentPackets& packets, const PathSet& paths) const {
  if (tail_probed_ || packets.in_flight() == 0) {
    return kNever;
  }
  return last_activity_ + std::max(2 * known(paths.best_response()), kMinTailProbe);
}

bool LossDetector::take_tail_probe(const SentPackets& packets, const PathSet& paths, Time now) {
  const bool is_due = last_activity_ != now && tail_probe_at(packets, paths) <= now;
  tail_probed_ = tail_probed_ || is_due;
  return is_due;
}

}  // namespace harp
