// Whether an engine costs what it costs alone, however many others there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ticks.hpp"

namespace harp_cycles {

inline constexpr std::size_t kMaxEngines = 256;

/// Engines on threads of their own, one to as many as there are cores, each on its core: bytes per
/// second, all together. Prints a table; returns how many messages were checked.
std::uint64_t measure_threads(double ms, std::size_t repetitions);

/// As many engines as `counts` says, which take turns on one core: cycles per packet, of both ends,
/// once in turns of a burst, so that they share the core's caches, and once in turns of so many
/// that each has them to itself, nearly as on a core of its own. Prints a table; returns how many
/// messages were checked.
std::uint64_t measure_turns(const std::vector<std::size_t>& counts,
                            double ms,
                            std::size_t repetitions,
                            const Clock& clock);

}  // namespace harp_cycles
