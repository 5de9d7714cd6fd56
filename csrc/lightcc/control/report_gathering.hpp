// At the leader of a host: one report in place of those that all its ranks, and all ranks below
// them in the tree, make alike.
//
// Nothing waits longer for it: what all ranks of an operation are to ask for cannot start before
// the last of them asks. What does not become whole goes on as it is after a moment, so that rank 0
// still learns which ranks an operation waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// Thread: one at a time.
class ReportGathering {
 public:
  /// `leader`: the rank that reports for all.
  explicit ReportGathering(std::uint32_t leader) : leader_(leader) {}

  /// Takes in a report; what is to go up now is added to `out`. `key`: the operation's key_of().
  /// `speaks_for`: how many ranks of the subtree this report is for, of `members` that will report.
  void add(Report report,
           const std::string& key,
           std::size_t speaks_for,
           std::size_t members,
           TimePoint now,
           std::vector<Report>& out);
  /// All that is held goes up as it came; reports that follow under the same keys do so at once.
  void flush(std::vector<Report>& out) { flush_until(TimePoint::max(), out); }
  /// The same for what has been held for long enough.
  void flush_due(TimePoint now, std::vector<Report>& out);
  /// The operation is over, whoever reported it.
  void forget(const std::string& key);

  bool empty() const { return gathers_.empty(); }
  bool has_held() const { return held_count_ > 0; }
  /// When flush_due() has something to do. Of no meaning unless has_held().
  TimePoint next_flush() const { return next_flush_; }

 private:
  struct Held {
    std::uint32_t rank = 0;
    std::int32_t last_rank = -1;
    std::vector<InlineInput> inputs;
  };
  struct Gather {
    Report::What what;  // The same from all of `held`.
    std::vector<Held> held;
    TimePoint since;
    std::size_t count = 0;  // Ranks that have reported.
    bool passes = false;    // Some of it has gone up.
  };
  Report whole(Gather& gather, Report last) const;
  void flush_until(TimePoint begun, std::vector<Report>& out);
  void pass_on(Gather& gather, std::vector<Report>& out);

  std::uint32_t leader_;
  std::unordered_map<std::string, Gather> gathers_;  // By the operation's key.
  std::size_t held_count_ = 0;                       // Gathers that hold something.
  TimePoint next_flush_{};
};

}  // namespace lightcc
