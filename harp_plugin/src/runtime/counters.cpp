// Counters of a stack as text.
#include <string>
#include <utility>
#include <vector>

#include "datapath/wire_counters.hpp"
#include "runtime/counter_tables.hpp"
#include "runtime/stack.hpp"

namespace harp {

std::vector<std::string> describe_counters(const Stack& stack) {
  std::vector<std::string> lines;
  const auto add = [&](const auto& table, const auto& stats) {
    std::string line;
    for (const auto& counter : table) {
      line += line.empty() ? "" : ", ";
      line += counter.name;
      line += " " + std::to_string(stats.*counter.value);
    }
    lines.push_back(std::move(line));
  };
  add(kWireCounters, stack.datapath().stats());
  add(kStackCounters, stack.stats());
  add(kSessionCounters, stack.session_stats());
  for (std::string& session : stack.describe_sessions()) {
    lines.push_back(std::move(session));
  }
  return lines;
}

}  // namespace harp
