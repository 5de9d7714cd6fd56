// What closing a session leaves in the log.
#include <string>
#include <utility>
#include <vector>

#include "datapath/wire_counters.hpp"
#include "runtime/channel.hpp"
#include "runtime/counter_tables.hpp"
#include "runtime/stack.hpp"

namespace harp {

std::vector<std::string> describe_close(const Stack& stack, const Channel& channel) {
  std::vector<std::string> lines;
  if (std::string session = stack.describe_session(channel); !session.empty()) {
    lines.push_back(std::move(session));
  }
  if (stack.channel_count() > 1) {
    return lines;
  }
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
  return lines;
}

}  // namespace harp
