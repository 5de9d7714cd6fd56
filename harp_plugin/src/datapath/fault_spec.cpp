#include "datapath/fault_spec.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/time.hpp"

namespace harp {
namespace {

struct Unit {
  std::string_view suffix;
  double factor;
};

constexpr std::array<Unit, 4> kTimes{{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}};
constexpr std::array<Unit, 1> kPlain{{{"", 1}}};
constexpr std::array<Unit, 4> kCounts{{{"", 1}, {"k", 1e3}, {"m", 1e6}, {"g", 1e9}}};

/// A number in `units`; NaN where it is none.
template <std::size_t Units>
double scaled(std::string_view text, const std::array<Unit, Units>& units) {
  double value = 0;
  const auto [rest, problem] = std::from_chars(text.begin(), text.end(), value);
  if (problem == std::errc() && value >= 0 && std::isfinite(value)) {
    const std::string_view suffix(rest, text.end());
    for (const Unit& unit : units) {
      if (suffix == unit.suffix) {
        return value * unit.factor;
      }
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::pair<std::string_view, std::string_view> split(std::string_view text, char at) {
  const std::size_t position = text.find(at);
  return position == std::string_view::npos
             ? std::pair(text, std::string_view())
             : std::pair(text.substr(0, position), text.substr(position + 1));
}

bool set_share(std::string_view text, double& share) {
  share = scaled(text, kPlain);
  return share >= 0 && share <= 1;
}

bool set_time(std::string_view text, Duration& time) {
  constexpr double kMaxNs = 3600e9;
  const double ns = scaled(text, kTimes);
  if (!(ns <= kMaxNs)) {
    return false;
  }
  time = Duration(static_cast<std::int64_t>(ns));
  return true;
}

bool set_count(std::string_view text, double& count) {
  constexpr double kMax = 1e15;
  count = scaled(text, kCounts);
  return count <= kMax;
}

template <typename Integer>
bool set_number(std::string_view text, Integer& number) {
  const bool is_hex = text.starts_with("0x");
  text.remove_prefix(is_hex ? 2 : 0);
  const auto [rest, problem] = std::from_chars(text.begin(), text.end(), number, is_hex ? 16 : 10);
  return problem == std::errc() && rest == text.end();
}

bool set_one(std::string_view name, std::string_view value, FaultSpec& spec) {
  ImpairmentConfig& link = spec.impairment;
  const auto [first, second] = split(value, ':');
  if (name == "loss") {
    return set_share(value, link.loss);
  }
  if (name == "duplicate") {
    return set_share(value, link.duplicate);
  }
  if (name == "corrupt") {
    return set_share(value, link.corrupt);
  }
  if (name == "reorder") {
    return set_share(first, link.detour) && set_time(second, link.detour_delay);
  }
  if (name == "burst") {
    return set_share(first, link.burst_start) && set_number(second, link.burst_packets) &&
           link.burst_packets > 0;
  }
  if (name == "delay") {
    return set_time(value, link.delay);
  }
  if (name == "jitter") {
    return set_time(value, link.jitter);
  }
  if (name == "rate") {
    return set_count(first, link.bits_per_s) && set_number(second, link.queue_packets);
  }
  if (name == "policer") {
    return set_count(first, link.policed_bits_per_s) && set_count(second, link.policer_burst_bytes);
  }
  if (name == "dark") {
    return set_number(value, link.dark_paths);
  }
  if (name == "mtu") {
    return set_number(value, link.mtu_bytes);
  }
  return name == "seed" && set_number(value, spec.seed);
}

}  // namespace

std::optional<FaultSpec> parse_fault_spec(std::string_view text, std::string* error) {
  FaultSpec spec;
  while (!text.empty()) {
    const auto [item, rest] = split(text, ',');
    const auto [name, value] = split(item, '=');
    if (!set_one(name, value, spec)) {
      *error =
          "'" + std::string(item) +
          "': expected one of loss=P, duplicate=P, corrupt=P, reorder=P:TIME, burst=P:PACKETS, "
          "delay=TIME, jitter=TIME, rate=BITS:PACKETS, policer=BITS:BYTES, dark=MASK, "
          "mtu=BYTES, seed=N, with P from 0 to 1 and TIME such as 200us or 1ms";
      return std::nullopt;
    }
    text = rest;
  }
  return spec;
}

}  // namespace harp
