// Which ranks are slow: they keep the others waiting in every step, for a sustained time.
//
// Only the times of reports are known here, not who waits for what. So the rule is one that cannot
// blame a rank for what overlaps:
//
// - A burst lasts from a first report until nothing of its process set is pending. A rank is behind
//   in it by the time from the median rank's last report to its own.
// - A lap is what repeats: it ends before an operation that it has had already. In training it is a
//   step, or a part of one. The others waited for a rank for as long as it was behind at the lap's
//   end, and for what it was less behind from one burst to the next.
// - A period has several laps. Its factor of a rank is that rank's time for a lap by the median
//   rank's. Of each rank, the lap with the longest wait is left out: everybody may hiccup once.
//
// A rank is slow when its factor was above 2 in several periods in a row, and until it
// was not in as many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_set>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/control/lateness.hpp"

namespace lightcc {

/// A rank has become slow, or is not slow any more.
struct SlowChange {
  std::int32_t rank = -1;
  double factor = 0;
  bool has_ended = false;
};

/// Thread: one at a time.
class SlowRanks {
 public:
  /// `sustained`: how long a rank must be slow; 0: none ever is.
  SlowRanks(std::size_t world_size, Duration sustained)
      : world_size_(world_size), sustained_(sustained) {}

  bool is_on() const { return sustained_ > Duration::zero(); }
  /// A first rank asks for an operation. `identity`: the same for what repeats in each step.
  void on_first_report(std::uint32_t process_set, std::size_t identity, TimePoint now);
  /// These ranks have asked for it: the last of them now, those before it a moment ago.
  void on_reports(std::uint32_t process_set, std::span<const std::int32_t> ranks, TimePoint now);
  /// Nobody is missing any more.
  void on_complete(std::uint32_t process_set);
  void on_removed(std::uint32_t process_set) { tracks_.erase(process_set); }

  /// By rank.
  std::vector<SlowRank> found(TimePoint now) const;
  /// What has changed since the last call.
  std::vector<SlowChange> take_changes();

 private:
  struct Asked {
    std::uint64_t burst = 0;
    TimePoint at;
    bool is_exact = true;  // Else it was a little earlier.
  };
  // What is known of one rank in one process set.
  struct Rank {
    Asked asked;
    Duration behind{};   // After the last burst.
    Duration waited{};   // In this lap.
    Duration sum{};      // In this period.
    Duration longest{};  // The longest of its laps.
    int slow_periods = 0;
    int other_periods = 0;  // In a row, as the former.
  };
  struct Found {
    double factor = 0;
    TimePoint since;
  };
  struct Track {
    std::vector<Rank> ranks;
    std::vector<std::int32_t> asked;  // In this burst.
    std::uint64_t burst = 1;
    std::size_t pending = 0;
    TimePoint burst_begin;
    TimePoint last_report;
    std::unordered_set<std::size_t> lap;  // What it has had.
    bool lap_is_over = false;             // As soon as nothing is pending.
    TimePoint lap_begin;
    TimePoint period_begin;
    std::size_t laps = 0;
    Duration median{};                   // The median rank's own time in this period.
    std::map<std::int32_t, Found> slow;  // By rank.
  };
  void end_burst(Track& track);
  void end_lap(Track& track);
  void end_period(Track& track);
  void judge(Track& track, std::int32_t number, Duration median);

  std::size_t world_size_;
  Duration sustained_;
  std::map<std::uint32_t, Track> tracks_;  // By process set.
  std::vector<TimePoint> times_;           // When each rank asked, in the burst that ends.
  std::vector<SlowChange> changes_;
};

}  // namespace lightcc
