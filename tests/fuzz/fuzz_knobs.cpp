// Environments: lines of NAME=VALUE. Whatever they hold, read_knobs() answers with knobs that are
// in range or with an error that a terminal can show.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lightcc/base/knobs.hpp"

namespace {

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

void check_ranges(const lightcc::Knobs& knobs) {
  require(knobs.tcp_rate >= 0);
  require(knobs.peer_timeout_s >= 0.1 && knobs.peer_timeout_s <= 86400);
  require(knobs.start_timeout_s >= 0.1 && knobs.start_timeout_s <= 86400);
  require(knobs.stall_warning_s > 0 && knobs.stall_shutdown_s >= 0);
  require(knobs.fusion_threshold_bytes >= 0);
  require(knobs.num_lanes >= 1 && knobs.num_lanes <= 8);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::map<std::string, std::string> environment;
  std::vector<std::string> names;
  while (!rest.empty() && names.size() < 64) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::size_t equals = std::min(line.find('='), line.size());
    names.emplace_back(line.substr(0, equals));
    environment[names.back()] = line.substr(std::min(equals + 1, line.size()));
  }
  const lightcc::GetEnv get_env = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
  const auto knobs = lightcc::read_knobs(get_env);
  if (knobs.ok()) {
    check_ranges(knobs.value());
  } else {
    require(knobs.status().code() == lightcc::ErrorCode::kInvalidArgument);
    require(!knobs.status().message().empty() && is_printable(knobs.status().message()));
  }
  for (const std::string& warning : lightcc::knob_warnings(names)) {
    require(is_printable(warning));
  }
  return 0;
}
