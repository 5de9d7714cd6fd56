// Buckets that are done for whoever asked for them, and that their device has not finished yet.
//
// Their Works stay here: they tell of a failure that comes later, and dropping them aborts what
// waits on the device for a peer that is gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/engine/operation.hpp"

namespace lightcc {

/// Thread: the one that drives the progress loop, unless said otherwise.
class UnfinishedBuckets {
 public:
  struct Entry {
    std::unique_ptr<Work> work;
    std::vector<std::shared_ptr<OutputBuffer>> outputs;  ///< The caller may have dropped them.
  };

  void add(Entry entry);
  bool empty() const { return entries_.empty(); }
  std::uint64_t size() const { return entries_.size(); }
  /// Moves those that are finished into `finished`, in the order in which they were added. Errors:
  /// those of the Works.
  Status advance(std::vector<Entry>& finished);
  /// Abandons all. They never count as finished.
  void drop_all();

  /// How many were added so far. Thread: any.
  std::uint64_t added() const { return added_.load(std::memory_order_acquire); }
  /// Whether the first `count` that were added are finished. Thread: any.
  bool has_finished(std::uint64_t count) const {
    return finished_.load(std::memory_order_acquire) >= count;
  }

 private:
  std::deque<std::pair<std::uint64_t, Entry>> entries_;  // With how many were added before.
  std::atomic<std::uint64_t> added_{0};
  std::atomic<std::uint64_t> finished_{0};  // So many of the first ones.
};

}  // namespace lightcc
