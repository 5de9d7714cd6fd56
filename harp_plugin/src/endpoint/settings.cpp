#include "endpoint/settings.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/crc32c.hpp"
#include "datapath/address.hpp"
#include "datapath/fault_spec.hpp"
#include "endpoint/profile.hpp"
#include "protocol/types.hpp"
#include "runtime/engine.hpp"

namespace harp {
namespace {

constexpr int kMaxEngines = 64;
constexpr int kMaxCore = 1023;
constexpr int kMinMtu = 576;
constexpr int kMaxMtu = 9600;
constexpr double kMinTimeoutS = 0.1;
constexpr double kMaxTimeoutS = 86400;

/// Reads one variable after the other, and keeps the first problem.
class Reader {
 public:
  Reader(const GetVariable& get, const Profile& profile) : get_(get), profile_(profile) {}

  std::string_view text(const char* name) const {
    const char* const value = get_(name);
    const char* const otherwise = value == nullptr ? profile_.get(name) : value;
    return otherwise != nullptr ? otherwise : "";
  }
  /// The first of two variables that is set.
  std::pair<const char*, std::string_view> first(const char* name, const char* otherwise) const {
    return text(name).empty() ? std::pair(otherwise, text(otherwise)) : std::pair(name, text(name));
  }
  void refuse(const char* name, std::string_view value, const std::string& allowed) {
    if (problem_.empty()) {
      const std::string where = get_(name) == nullptr ? profile_.where(name) : "";
      problem_ = (where.empty() ? "" : where + ": ") + name + "=" + std::string(value) +
                 ": expected " + allowed;
    }
  }
  void number(const char* name, int minimum, int maximum, int& out) {
    const std::string_view value = text(name);
    if (!value.empty() && !parse(value, minimum, maximum, out)) {
      refuse(name,
             value,
             "a number from " + std::to_string(minimum) + " to " + std::to_string(maximum));
    }
  }
  void flag(const char* name, bool& out) {
    int number = out ? 1 : 0;
    this->number(name, 0, 1, number);
    out = number == 1;
  }
  static bool parse(std::string_view value, int minimum, int maximum, int& out) {
    int number = 0;
    const auto [end, problem] = std::from_chars(value.begin(), value.end(), number);
    if (problem != std::errc() || end != value.end() || number < minimum || number > maximum) {
      return false;
    }
    out = number;
    return true;
  }
  const std::string& problem() const { return problem_; }

 private:
  const GetVariable& get_;
  const Profile& profile_;
  std::string problem_;
};

void read_timeout(Reader& reader, Settings& settings) {
  const auto [name, value] = reader.first("HARP_PEER_TIMEOUT", "LIGHT_PEER_TIMEOUT");
  if (value.empty()) {
    return;
  }
  double timeout_s = 0;
  const auto [end, problem] = std::from_chars(value.begin(), value.end(), timeout_s);
  if (problem != std::errc() || end != value.end() || !(timeout_s >= kMinTimeoutS) ||
      timeout_s > kMaxTimeoutS) {
    reader.refuse(name, value, "seconds from 0.1 to 86400");
    return;
  }
  settings.peer_timeout =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout_s));
}

void read_mode(Reader& reader, Settings& settings) {
  const std::string_view value = reader.text("HARP_MODE");
  if (value == "adaptive") {
    settings.mode = RunMode::kAdaptive;
  } else if (value == "thread") {
    settings.mode = RunMode::kThread;
  } else if (!value.empty() && value != "inline") {
    reader.refuse("HARP_MODE", value, "inline, adaptive or thread");
  }
}

void read_cores(Reader& reader, Settings& settings) {
  const std::string_view value = reader.text("HARP_CORES");
  std::string_view rest = value;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    int core = 0;
    if (!Reader::parse(one, 0, kMaxCore, core)) {
      reader.refuse("HARP_CORES", value, "numbers of cores, such as 2,3");
      return;
    }
    settings.cores.push_back(core);
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
  }
}

void read_datapath(Reader& reader, Settings& settings) {
  const std::string_view value = reader.text("HARP_DATAPATH");
  if (value == "udp") {
    settings.datapath = DatapathKind::kUdp;
  } else if (value == "af_xdp") {
    settings.datapath = DatapathKind::kAfXdp;
  } else if (value == "dpdk") {
    settings.datapath = DatapathKind::kDpdk;
  } else if (!value.empty() && value != "auto") {
    reader.refuse("HARP_DATAPATH", value, "auto, udp, af_xdp or dpdk");
  }
}

std::optional<Address> parse_ipv4(std::string_view text) {
  Address address;
  return ::inet_pton(AF_INET, std::string(text).c_str(), address.ip.data()) == 1
             ? std::optional(address)
             : std::nullopt;
}

/// "DEVICE@ADDRESS/PREFIX[@GATEWAY]".
std::optional<DpdkDevice> parse_dpdk_device(std::string_view text) {
  const std::size_t at = text.find('@');
  const std::size_t slash = text.find('/', std::min(at, text.size()));
  if (at == 0 || slash == std::string_view::npos) {
    return std::nullopt;
  }
  const std::size_t end = std::min(text.find('@', slash), text.size());
  DpdkDevice device;
  device.device = std::string(text.substr(0, at));
  int prefix = 0;
  const auto address = parse_ipv4(text.substr(at + 1, slash - at - 1));
  if (!address || !Reader::parse(text.substr(slash + 1, end - slash - 1), 0, 32, prefix)) {
    return std::nullopt;
  }
  device.address = *address;
  device.prefix = static_cast<unsigned>(prefix);
  if (end < text.size()) {
    device.gateway = parse_ipv4(text.substr(end + 1));
    if (!device.gateway) {
      return std::nullopt;
    }
  }
  return device;
}

void read_dpdk(Reader& reader, Settings& settings) {
  reader.number("HARP_DPDK_MTU", kMinMtu, kMaxMtu, settings.dpdk_mtu_bytes);
  settings.dpdk_library = reader.text("HARP_DPDK_LIBRARY");
  const std::string_view value = reader.text("HARP_DPDK");
  std::string_view rest = value;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(';'));
    auto device = parse_dpdk_device(one);
    if (!device) {
      reader.refuse("HARP_DPDK", value, "DEVICE@IPV4/PREFIX[@GATEWAY], with ; between several");
      return;
    }
    settings.dpdk_devices.push_back(*std::move(device));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
  }
  if (settings.datapath == DatapathKind::kDpdk && settings.dpdk_devices.empty()) {
    reader.refuse("HARP_DATAPATH", "dpdk", "HARP_DPDK beside it: 0000:00:06.0@192.0.2.1/24");
  }
}

void read_fault(Reader& reader, Settings& settings) {
  const std::string_view value = reader.text("HARP_FAULT");
  if (value.empty()) {
    return;
  }
  std::string error;
  settings.fault = parse_fault_spec(value, &error);
  if (!settings.fault) {
    reader.refuse("HARP_FAULT", value, "a list of faults; " + error);
  }
}

void read_stat(Reader& reader, Settings& settings) {
  reader.flag("HARP_STAT", settings.stat);
  const std::string_view value = reader.text("HARP_STAT_DIR");
  if (value.empty()) {
    return;
  }
  if (value.front() != '/') {
    reader.refuse("HARP_STAT_DIR", value, "an absolute path of a folder, such as /dev/shm");
    return;
  }
  settings.stat_folder = value;
}

}  // namespace

bool wants_payload_crc(const Settings& settings) {
  return settings.payload_crc.value_or(crc32c_is_fast() &&
                                       settings.datapath != DatapathKind::kDpdk);
}

std::optional<Settings> read_settings(const GetVariable& get,
                                      const Profile& profile,
                                      std::string* error) {
  Settings settings;
  Reader reader(get, profile);
  settings.interfaces = reader.first("HARP_IFNAME", "NCCL_SOCKET_IFNAME").second;
  read_timeout(reader, settings);
  read_mode(reader, settings);
  reader.number("HARP_ENGINES", 1, kMaxEngines, settings.engines);
  read_cores(reader, settings);
  int paths = settings.paths;
  reader.number("HARP_PATHS", 1, static_cast<int>(kMaxPaths), paths);
  settings.paths = static_cast<std::uint16_t>(paths);
  read_datapath(reader, settings);
  read_dpdk(reader, settings);
  read_fault(reader, settings);
  bool payload_crc = wants_payload_crc(settings);
  reader.flag("HARP_PAYLOAD_CRC", payload_crc);
  settings.payload_crc = payload_crc;
  reader.flag("HARP_COMPETE", settings.competes);
  read_stat(reader, settings);
  if (!reader.problem().empty()) {
    *error = reader.problem();
    return std::nullopt;
  }
  return settings;
}

}  // namespace harp
