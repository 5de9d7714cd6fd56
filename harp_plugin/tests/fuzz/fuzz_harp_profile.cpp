// Profiles. Whatever a file holds, the plugin starts with settings that are in range, or says why
// not in words that a terminal can show.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "endpoint/profile.hpp"
#include "endpoint/settings.hpp"

namespace {

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

void check_error(const std::string& error) {
  require(!error.empty());
  require(std::ranges::all_of(error, [](char c) { return c >= ' ' && c <= '~'; }));
}

void check_ranges(const harp::Settings& settings) {
  require(settings.engines >= 1 && settings.engines <= 64);
  require(settings.paths >= 1 && settings.paths <= 64);
  require(settings.dpdk_mtu_bytes >= 576 && settings.dpdk_mtu_bytes <= 9600);
  require(settings.peer_timeout >= std::chrono::milliseconds(99));
  require(settings.peer_timeout <= std::chrono::hours(24));
  require(std::ranges::all_of(settings.cores, [](int core) { return core >= 0 && core <= 1023; }));
  require(settings.datapath != harp::DatapathKind::kDpdk || !settings.dpdk_devices.empty());
  for (const harp::DpdkDevice& device : settings.dpdk_devices) {
    require(!device.device.empty() && device.prefix <= 32);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string error;
  const auto profile = harp::Profile::parse(text, "profile", &error);
  if (!profile) {
    check_error(error);
    return 0;
  }
  require(error.empty() && !profile->description().empty());
  const harp::GetVariable unset = [](const char*) -> const char* { return nullptr; };
  const auto settings = harp::read_settings(unset, *profile, &error);
  if (settings) {
    check_ranges(*settings);
  } else {
    check_error(error);
    require(error.starts_with("profile:"));  // The line: there is nothing else to be wrong.
  }
  return 0;
}
