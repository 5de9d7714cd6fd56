// A random story of two hosts, drawn from a seed, and whether it ended as the protocol promises.
//
// The seed draws sizes and numbers of messages both ways, the applications' pace, both wires with
// their faults, and session settings; in a third of all stories sequence numbers start just before
// they wrap. What must hold at the end:
//   * nobody spins, and it ends before a deadline in virtual time;
//   * without a fatal fault every message arrives once, whole, with its tag, in its own receive;
//     nothing is written behind it; then both sides close, and the sessions finish;
//   * with a fatal fault (a peer that dies, a network that stays dark, a message that is too long)
//     every request completes, those that fail with the error that belongs to the fault.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace harp::sim {

struct ScenarioResult {
  bool ok = false;
  std::string why;      ///< The reason of a failure.
  std::string summary;  ///< What was drawn, in one line.
  std::uint64_t events = 0;
  std::uint64_t data_packets = 0;
  std::uint64_t retransmitted = 0;
  std::uint64_t dropped = 0;
  bool was_fatal = false;
  bool wrapped = false;  ///< A packet number passed 2^32.
};

/// Plays the story of `seed`; writes every packet and event to `trace` where that is not null.
ScenarioResult run_scenario(std::uint64_t seed, std::FILE* trace);

}  // namespace harp::sim
