// One run of harp-perf, seen from one end.
#pragma once

#include <cstddef>
#include <vector>

#include "link.hpp"

namespace harp_perf {

/// What one end needed for a run.
struct Usage {
  double wall_s = 0;
  double cpu_s = 0;  ///< User and system, of all threads.
};

/// Moves `count` messages of `bytes` one way, `window` at a time, and checks that each is the one
/// that it should be: a stamp at both ends of each message, and every byte of the first ones.
/// Throws std::runtime_error where one is not.
Usage stream(Link& link, bool is_sender, std::size_t bytes, std::size_t count, std::size_t window);

/// Sends a message to and fro `count` times; the first end gets the round trips in seconds, sorted.
std::vector<double> ping_pong(const Ends& ends,
                              bool is_first,
                              std::size_t bytes,
                              std::size_t count);

}  // namespace harp_perf
