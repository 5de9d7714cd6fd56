// What other processes see of an engine: its counters, its sessions and their paths, as words in
// the block that a StatFile has for it.
//
// Thread: the holder of the engine's driver lock. Blocks: never.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/time.hpp"
#include "runtime/stack.hpp"
#include "sync/seq_words.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp {

/// What does not change of an engine.
struct EngineLabels {
  std::string device = {};
  std::size_t index = 0;  ///< Among the device's.
  std::string datapath = {};
  std::string mode = {};
};

class StatPublisher {
 public:
  static constexpr std::size_t kMaxSessions = 64;  ///< Shown of an engine.
  static constexpr std::size_t kMaxPaths = 16;     ///< Shown of a session.

  /// The layout of a file with so many engines.
  static StatLayout layout(std::size_t engines);

  /// `block`: of a file with that layout; outlives it.
  StatPublisher(EngineLabels labels, std::span<std::uint64_t> block);

  /// Writes how `stack` stands at `now`. In the child of a fork it does nothing: the block is the
  /// parent's.
  void publish(const Stack& stack, Time now);

 private:
  void write_engine(const Stack& stack, StatWriter& out) const;

  EngineLabels labels_;
  SeqWords block_;
  pid_t owner_;
  std::vector<SessionView> sessions_;
  std::vector<std::uint64_t> values_;
};

}  // namespace harp
