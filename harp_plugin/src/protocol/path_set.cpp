#include "protocol/path_set.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/rng.hpp"
#include "base/serial.hpp"
#include "base/time.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

constexpr int kTimeoutsToQuarantine = 3;
constexpr Duration kMinProbeInterval = std::chrono::milliseconds(10);
constexpr Duration kMaxProbeInterval = std::chrono::seconds(1);

}  // namespace

PathSet::PathSet(std::size_t count, std::size_t flows)
    : paths_(count), flows_(flows), next_flow_(count) {
  for (std::size_t path = 0; path < count; ++path) {
    paths_[path].flow = static_cast<FlowIndex>(path % flows);
  }
  usable_.reserve(count);
  refresh();
}

void PathSet::limit(std::size_t count) {
  paths_.resize(std::min(count, paths_.size()));
  refresh();
}

void PathSet::refresh() {
  usable_.clear();
  next_probe_at_ = kNever;
  for (std::size_t path = 0; path < paths_.size(); ++path) {
    next_probe_at_ = std::min(next_probe_at_, paths_[path].probe_at);
    if (!paths_[path].in_quarantine) {
      usable_.push_back(static_cast<PathIndex>(path));
    }
  }
  if (usable_.empty()) {
    for (std::size_t path = 0; path < paths_.size(); ++path) {
      usable_.push_back(static_cast<PathIndex>(path));
    }
  }
}

PathIndex PathSet::draw(Rng& rng, PathIndex avoid) const {
  const std::size_t drawn = rng.below(usable_.size());
  if (usable_[drawn] != avoid) {
    return usable_[drawn];
  }
  return usable_[(drawn + 1) % usable_.size()];
}

double PathSet::cost(PathIndex path, std::uint32_t in_flight) const {
  const Duration rtt =
      paths_[path].rtt.has_sample() ? paths_[path].rtt.smoothed() : best_rtt() + Duration(1);
  return static_cast<double>(rtt.count()) * (in_flight + 1);
}

bool PathSet::on_report(PathIndex index, PathSeq newest, Time now) {
  Path& path = paths_[index];
  if (!serial_less(path.newest_acked, newest) || !serial_less(newest, path.next_seq)) {
    return false;
  }
  path.newest_acked = newest;
  Path::Mark& mark = path.first_mark.is_set() ? path.latest_mark : path.first_mark;
  mark = {.seq = newest, .at = now};
  on_alive(index, now);
  return true;
}

bool PathSet::on_astray(PathIndex index, PathSeq newest) {
  Path& path = paths_[index];
  // What was sent before the path moved says nothing about where it is now.
  if (next_flow_ >= flows_ || serial_less(newest, path.flow_begin) ||
      !serial_less(newest, path.next_seq)) {
    return false;
  }
  path.flow = static_cast<FlowIndex>(next_flow_++);
  path.flow_begin = path.next_seq;
  return true;
}

void PathSet::on_alive(PathIndex index, Time now) {
  Path& path = paths_[index];
  path.last_progress = now;
  path.timeouts = 0;
  if (path.in_quarantine) {
    path.in_quarantine = false;
    path.probe_at = kNever;
    refresh();
  }
}

bool PathSet::on_timeout(PathIndex index, Time sent_at, Time now, Duration rto) {
  const bool others_work = std::ranges::any_of(paths_, [&](const Path& other) {
    return &other != &paths_[index] && other.last_progress > sent_at;
  });
  Path& path = paths_[index];
  if (!others_work || path.last_progress > sent_at || path.in_quarantine) {
    return others_work;
  }
  if (++path.timeouts >= kTimeoutsToQuarantine) {
    path.in_quarantine = true;
    path.probe_interval = std::max(2 * rto, kMinProbeInterval);
    path.probe_at = now + path.probe_interval;
    refresh();
  }
  return true;
}

PathIndex PathSet::take_due_probe(Time now) {
  for (std::size_t index = 0; index < paths_.size(); ++index) {
    Path& path = paths_[index];
    if (path.probe_at <= now) {
      path.probe_interval = std::min(2 * path.probe_interval, kMaxProbeInterval);
      path.probe_at = now + path.probe_interval;
      refresh();
      return static_cast<PathIndex>(index);
    }
  }
  return kNoPath;
}

template <typename TimeOf>
Duration PathSet::best(const TimeOf& time_of) const {
  Duration best = Duration::max();
  for (const PathIndex index : usable_) {
    const RttEstimator& rtt = paths_[index].rtt;
    if (rtt.has_sample()) {
      best = std::min(best, time_of(rtt));
    }
  }
  return best == Duration::max() ? Duration::zero() : best;
}

Duration PathSet::best_rtt() const {
  return best([](const RttEstimator& rtt) { return rtt.smoothed(); });
}

Duration PathSet::best_response() const {
  return best([](const RttEstimator& rtt) { return rtt.response().smoothed(); });
}

Duration PathSet::min_rtt() const {
  Duration minimum = Duration::max();
  for (const Path& path : paths_) {
    if (path.rtt.has_sample()) {
      minimum = std::min(minimum, path.rtt.minimum());
    }
  }
  return minimum == Duration::max() ? Duration::zero() : minimum;
}

}  // namespace harp
