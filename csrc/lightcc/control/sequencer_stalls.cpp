// The sequencer's answers to the question whom an operation waits for.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/control/sequencer.hpp"

namespace lightcc {

Sequencer::StallReport Sequencer::check_stalls(TimePoint now) {
  StallReport report;
  if (!options_.stall_check) {
    return report;
  }
  for (auto& entry : pending_) {
    Pending& pending = *entry.second;
    const Duration age = now - pending.since;
    if (pending.ready || age < options_.stall_warning) {
      continue;
    }
    const std::vector<std::int32_t> awaited = missing(pending);
    std::string listed;
    for (const std::int32_t rank : awaited) {
      listed += (listed.empty() ? "" : ", ") + std::to_string(rank);
    }
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(age).count();
    const bool is_from_any = is_transfer(pending.common.op) && pending.members->size() > 2;
    const std::string text =
        std::string(op_type_name(pending.common.op)) + " '" + pending.common.name +
        "' has been stalled for " + std::to_string(seconds) + " s: " +
        (is_from_any ? "none of the ranks [" + listed + "] has sent it"
                     : "ranks [" + listed + "] have not submitted it") +
        ". Usually ranks run different code, or make different numbers of steps.";
    if (!std::exchange(pending.warned, true)) {
      report.warnings.push_back(text);
    }
    if (options_.stall_shutdown > Duration::zero() && age >= options_.stall_shutdown &&
        report.fatal.ok()) {
      report.fatal = Status(ErrorCode::kTimeout, text, awaited.empty() ? -1 : awaited.front());
    }
  }
  return report;
}

std::vector<std::int32_t> Sequencer::missing(const Pending& pending) const {
  std::vector<std::int32_t> ranks;
  for (std::size_t i = 0; i < pending.members->size(); ++i) {
    const auto member = (*pending.members)[i];
    if (pending.reported[i] == 0 && joined_[static_cast<std::size_t>(member)] == 0) {
      ranks.push_back(member);
    }
  }
  return ranks;
}

Lateness Sequencer::lateness(TimePoint now) const {
  Lateness lateness;
  lateness.last_asked = last_asked_;
  const Pending* oldest = nullptr;
  for (const auto& entry : pending_) {
    const Pending& pending = *entry.second;
    if (!pending.ready && (oldest == nullptr || pending.since < oldest->since)) {
      oldest = &pending;
    }
  }
  lateness.slow = slow_ranks_.found(now);
  if (oldest != nullptr) {
    lateness.awaited = missing(*oldest);
    lateness.awaited_s = std::chrono::duration<double>(now - oldest->since).count();
  }
  return lateness;
}

}  // namespace lightcc
