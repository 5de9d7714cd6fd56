// At which step of its compression each tensor is, on all ranks alike.
//
// What a rank sends in a warm-up follows from the number of steps that it has made. Ranks that are
// new in an elastic job, or that have loaded different states, have made different numbers. NCCL,
// for one, leaves undefined what happens where they then call it with different counts. So each
// rank says with its request by how many steps it is ahead of the all-reduces of the tensor that
// this world has begun. All ranks have begun the same ones, so these numbers compare. The most
// counts, and is announced: a training that has warmed up does not do so again for a newcomer. In a
// usual step none changes, and nothing is said.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace lightcc {

/// Thread: the one that drives the progress loop.
class StepCounts {
 public:
  using Key = std::pair<std::uint32_t, std::string>;  ///< Process set and name.

  /// By how many steps this rank is ahead: it has made `steps`. While an all-reduce of the tensor
  /// runs, by how many it was agreed to be.
  std::int64_t ahead(const Key& key, std::uint64_t steps) const;
  /// An all-reduce is announced, and `agreed` is the most that any rank is ahead. Returns the
  /// steps made before it.
  std::uint64_t begin(const Key& key, std::int64_t agreed);
  /// One that had begun is over.
  void end(const Key& key);
  /// Forgets the tensors of a process set.
  void forget(std::uint32_t process_set);

 private:
  struct Count {
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;
    std::int64_t ahead = 0;  // As agreed for the last one.
  };
  std::map<Key, Count> counts_;
};

}  // namespace lightcc
