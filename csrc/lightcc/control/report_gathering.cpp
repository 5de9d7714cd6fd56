#include "lightcc/control/report_gathering.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace lightcc {
namespace {

// Longer than ranks of one step are apart, and too short for anybody who waits to notice.
constexpr Duration kPatience = std::chrono::milliseconds(5);

}  // namespace

void ReportGathering::add(Report report,
                          const std::string& key,
                          std::size_t speaks_for,
                          std::size_t members,
                          TimePoint now,
                          std::vector<Report>& out) {
  if (speaks_for >= members) {
    out.push_back(std::move(report));
    return;
  }
  const auto entry = gathers_.try_emplace(key).first;
  Gather& gather = entry->second;
  gather.count += speaks_for;
  const bool is_whole = gather.count >= members;
  if (!gather.held.empty() && gather.what != report.what) {
    pass_on(gather, out);
  }
  if (gather.passes) {
    out.push_back(std::move(report));
  } else if (is_whole) {
    out.push_back(whole(gather, std::move(report)));
    --held_count_;
  } else {
    if (gather.held.empty()) {
      gather.what = std::move(report.what);
      gather.since = now;
      next_flush_ = held_count_++ == 0 ? now + kPatience : next_flush_;
    }
    gather.held.push_back({report.rank, report.last_rank, std::move(report.inputs)});
  }
  if (is_whole) {
    gathers_.erase(entry);
  }
}

// All that is held and `last`, as one report.
Report ReportGathering::whole(Gather& gather, Report last) const {
  std::vector<InlineInput> inputs = std::move(last.inputs);
  for (Held& held : gather.held) {
    std::ranges::move(held.inputs, std::back_inserter(inputs));
  }
  const auto last_rank =
      last.is_of_subtree() ? last.last_rank : static_cast<std::int32_t>(last.rank);
  return {leader_, std::move(last.what), last_rank, std::move(inputs)};
}

void ReportGathering::pass_on(Gather& gather, std::vector<Report>& out) {
  for (Held& held : gather.held) {
    out.push_back({held.rank, gather.what, held.last_rank, std::move(held.inputs)});
  }
  gather.held.clear();
  gather.passes = true;
  --held_count_;
}

void ReportGathering::flush_until(TimePoint begun, std::vector<Report>& out) {
  next_flush_ = TimePoint::max();
  for (auto& [key, gather] : gathers_) {
    if (gather.held.empty()) {
      continue;
    }
    if (gather.since <= begun) {
      pass_on(gather, out);
    } else {
      next_flush_ = std::min(next_flush_, gather.since + kPatience);
    }
  }
}

void ReportGathering::flush_due(TimePoint now, std::vector<Report>& out) {
  if (has_held() && now >= next_flush_) {
    flush_until(now - kPatience, out);
  }
}

void ReportGathering::forget(const std::string& key) {
  const auto found = gathers_.find(key);
  if (found != gathers_.end()) {
    held_count_ -= found->second.held.empty() ? 0 : 1;
    gathers_.erase(found);
  }
}

}  // namespace lightcc
