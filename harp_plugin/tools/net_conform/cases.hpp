// The cases: what is done to a plugin, and which rules that must have looked at.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "side.hpp"

namespace net_conform {

/// Where a case can run, beyond the plain: both sides, any version, any plugin.
enum class Needs : std::uint8_t {
  kNothing,
  kNoPeer,     ///< Side A alone runs it.
  kProcesses,  ///< The other side must be a process. It may die.
  kGroups,     ///< Version 5 and more than one buffer in a receive.
  kStrict,     ///< --strict.
};

struct Case {
  const char* name;
  void (*run)(Side& side);
  std::vector<const char*> rules;
  Needs needs = Needs::kNothing;
};

std::span<const Case> load_cases();
std::span<const Case> connect_cases();
std::span<const Case> data_cases();
std::span<const Case> request_cases();
std::span<const Case> group_cases();
std::span<const Case> teardown_cases();
/// These come when the other side is over.
std::span<const Case> unload_cases();

/// All others, in the order in which they run.
std::vector<Case> all_cases();

/// Empty: it can run. Else why not.
std::string_view reason_to_skip(const Case& one, const Options& options, int max_recvs);

}  // namespace net_conform
