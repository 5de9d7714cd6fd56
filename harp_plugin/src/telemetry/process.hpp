// Which process it was: a number comes back, a number with the time of its start does not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace harp {

/// A zero is something that this machine does not tell (no /proc).
struct ProcessIdentity {
  std::uint32_t pid = 0;
  std::uint64_t start_ticks = 0;  ///< Since boot, as /proc/PID/stat has it.
  /// What `pid` counts in. Containers may share a folder and not their processes.
  std::uint64_t pid_namespace = 0;
  std::array<std::byte, 16> boot_id{};
  bool operator==(const ProcessIdentity&) const = default;
};

/// The identity of the process that asks.
ProcessIdentity own_identity();

enum class ProcessLife : std::uint8_t {
  kAlive,
  kDead,
  kUnknown,  ///< It runs, or ran, where this process does not see it.
};

ProcessLife look_for(const ProcessIdentity& process);

}  // namespace harp
