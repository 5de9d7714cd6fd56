// A random story of the control plane, drawn from a seed, and whether it ended as it must.
//
// The seed draws hosts of unequal sizes, process sets, several steps of operations that each rank
// asks for in an order of its own, and in most stories something that goes wrong. What must hold:
//   * in each process set and lane all members run the same buckets in the same order;
//   * the result of an all-reduce whose inputs went with the reports is made of them all;
//   * without a fault every operation completes on every rank that asked for it, and nothing is
//   left
//     behind: no operation that waits, no report that is pending, slots alike on all ranks;
//   * with a fault, every rank that is alive ends within a bound, or has got everything it waits
//   for;
//   * the error names a rank that the fault befell, never a healthy one.
#pragma once

#include <cstdint>
#include <string>

namespace lightcc::sim {

/// What the simulator does wrong on purpose, in order to be found.
enum class Sabotage : std::uint8_t {
  kNone,
  kLoseFrame,
  kSwapFrames,
  kBlameWrongly,
  kHideWaiting,
  kSpoilInput,
};

struct StoryResult {
  bool ok = false;
  std::string why;      ///< What a failure said.
  std::string summary;  ///< What was drawn, in one line.
  int ranks = 0;
  bool failed_world = false;  ///< A fault ended the world.
  bool closed = false;        ///< It ended in good order.
  std::uint64_t operations = 0;
  std::uint64_t inline_results = 0;  ///< All-reduces whose inputs went with the reports.
  std::uint64_t events = 0;
};

StoryResult play_story(std::uint64_t seed, Sabotage sabotage);

}  // namespace lightcc::sim
