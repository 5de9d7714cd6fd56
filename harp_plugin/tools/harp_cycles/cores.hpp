// The cores of this machine, and how far apart they are.
#pragma once

#include <cstddef>

namespace harp_cycles {

/// How long a cache line takes to another core and back, for each pair of cores: it tells those
/// that share a cache from those that do not, which virtual machines do not say. Prints a table of
/// medians.
void measure_lines(std::size_t repetitions);

}  // namespace harp_cycles
