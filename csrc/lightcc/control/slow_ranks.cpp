#include "lightcc/control/slow_ranks.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace lightcc {
namespace {

// Reports may travel so long: leaders keep them for a moment (control/report_gathering).
constexpr Duration kMinBehind = std::chrono::milliseconds(10);
// What ranks below a leader ask for alike may come so much later than the first of them asked.
constexpr Duration kGatheringTime = std::chrono::milliseconds(20);
constexpr double kSlowFactor = 2;
constexpr std::size_t kMinLaps = 5;     // In a period.
constexpr int kPeriods = 3;             // Within the sustained time.
constexpr std::size_t kMaxLap = 65536;  // Names that do not come back fill no memory.

double in_seconds(Duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void SlowRanks::on_first_report(std::uint32_t process_set, std::size_t identity, TimePoint now) {
  Track& track = tracks_[process_set];
  if (track.ranks.empty()) {
    track.ranks.resize(world_size_);
    track.lap_begin = track.period_begin = track.last_report = now;
  }
  const bool is_repeated = track.lap.contains(identity);
  if (track.lap.size() >= kMaxLap) {
    track.lap_is_over = true;
  }
  if (track.pending++ == 0) {
    if (is_repeated || track.lap_is_over) {
      end_lap(track);
    }
    track.burst_begin = now;
  } else if (is_repeated) {
    track.lap_is_over = true;
  }
  track.lap.insert(identity);
}

void SlowRanks::on_reports(std::uint32_t process_set,
                           std::span<const std::int32_t> ranks,
                           TimePoint now) {
  Track& track = tracks_[process_set];
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Asked& asked = track.ranks[static_cast<std::size_t>(ranks[i])].asked;
    if (asked.burst != track.burst) {
      track.asked.push_back(ranks[i]);
    }
    asked = {track.burst, now, i + 1 == ranks.size()};
  }
  track.last_report = now;
}

void SlowRanks::on_complete(std::uint32_t process_set) {
  Track& track = tracks_[process_set];
  if (--track.pending == 0) {
    end_burst(track);
  }
}

void SlowRanks::end_burst(Track& track) {
  TimePoint median = track.last_report;
  if (track.last_report - track.burst_begin >= kMinBehind) {
    times_.clear();
    for (const std::int32_t number : track.asked) {
      times_.push_back(track.ranks[static_cast<std::size_t>(number)].asked.at);
    }
    const auto middle = times_.begin() + static_cast<std::ptrdiff_t>((times_.size() - 1) / 2);
    std::ranges::nth_element(times_, middle);
    median = *middle;
  }
  for (const std::int32_t number : track.asked) {
    Rank& rank = track.ranks[static_cast<std::size_t>(number)];
    Duration behind = rank.asked.at - median;
    behind -= rank.asked.is_exact ? Duration::zero() : kGatheringTime;
    behind = behind < kMinBehind ? Duration::zero() : behind;
    rank.waited += std::max(Duration::zero(), rank.behind - behind);
    rank.behind = behind;
  }
  track.asked.clear();
  ++track.burst;
}

// At the last report: since then nothing was pending.
void SlowRanks::end_lap(Track& track) {
  Duration longest{};
  for (Rank& rank : track.ranks) {
    const Duration waited =
        std::exchange(rank.waited, {}) + std::exchange(rank.behind, Duration::zero());
    rank.sum += waited;
    rank.longest = std::max(rank.longest, waited);
    longest = std::max(longest, waited);
  }
  track.median += std::max(Duration::zero(), track.last_report - track.lap_begin - longest);
  track.lap_begin = track.last_report;
  track.lap.clear();
  track.lap_is_over = false;
  if (++track.laps >= kMinLaps && track.lap_begin - track.period_begin >= sustained_ / kPeriods) {
    end_period(track);
  }
}

void SlowRanks::end_period(Track& track) {
  const auto laps = static_cast<std::int64_t>(std::exchange(track.laps, 0));
  const Duration median = std::exchange(track.median, {}) * (laps - 1) / laps;
  for (std::size_t number = 0; number < track.ranks.size(); ++number) {
    judge(track, static_cast<std::int32_t>(number), median);
  }
  track.period_begin = track.lap_begin;
}

void SlowRanks::judge(Track& track, std::int32_t number, Duration median) {
  Rank& rank = track.ranks[static_cast<std::size_t>(number)];
  const Duration waited = std::exchange(rank.sum, {}) - std::exchange(rank.longest, {});
  const Duration shortest = std::chrono::microseconds(1);
  const double factor = 1 + in_seconds(waited) / in_seconds(std::max(median, shortest));
  const bool is_over = factor > kSlowFactor;
  rank.slow_periods = is_over ? rank.slow_periods + 1 : 0;
  rank.other_periods = is_over ? 0 : rank.other_periods + 1;
  const auto known = track.slow.find(number);
  if (known == track.slow.end()) {
    if (rank.slow_periods >= kPeriods) {
      track.slow.emplace(number, Found{factor, track.lap_begin});
      changes_.push_back({number, factor, false});
    }
    return;
  }
  if (is_over) {
    known->second.factor = factor;
  } else if (rank.other_periods >= kPeriods) {
    changes_.push_back({number, factor, true});
    track.slow.erase(known);
  }
}

std::vector<SlowRank> SlowRanks::found(TimePoint now) const {
  std::map<std::int32_t, SlowRank> found;
  for (const auto& [process_set, track] : tracks_) {
    for (const auto& [number, one] : track.slow) {
      SlowRank& slow = found.try_emplace(number, SlowRank{number}).first->second;
      slow.factor = std::max(slow.factor, one.factor);
      slow.slow_s = std::max(slow.slow_s, in_seconds(now - one.since));
    }
  }
  std::vector<SlowRank> ranks;
  ranks.reserve(found.size());
  for (const auto& [number, slow] : found) {
    ranks.push_back(slow);
  }
  return ranks;
}

std::vector<SlowChange> SlowRanks::take_changes() {
  return std::exchange(changes_, {});
}

}  // namespace lightcc
