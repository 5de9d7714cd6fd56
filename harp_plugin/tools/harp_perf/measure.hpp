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

/// The messages that are under way at a time.
using Messages = std::vector<std::vector<std::byte>>;

/// Filled at the sender's end. Takes longer than to send them does.
Messages make_messages(std::size_t bytes, std::size_t window, bool is_sender);

/// Moves `count` messages one way, each the one after another of `messages`, and checks that each
/// is the one that it should be: a stamp at both ends of it. Throws std::runtime_error where one is
/// not.
Usage stream(Link& link, bool is_sender, Messages& messages, std::size_t count);

/// Checks every byte of the last messages that stream() received. Throws as it does.
void check_last(const Messages& messages, std::size_t count);

/// Sends a message `count` times to a peer that sends it back with echo(), and checks every byte of
/// what comes. The round trips in seconds, sorted. Throws std::runtime_error where a byte differs.
std::vector<double> ping_pong(const Ends& ends, std::size_t bytes, std::size_t count);

/// The peer of ping_pong(): each receive is posted before its message leaves, as NCCL's are.
void echo(const Ends& ends, std::size_t bytes, std::size_t count);

}  // namespace harp_perf
