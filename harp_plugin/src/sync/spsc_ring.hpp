// A queue from one thread to one other, without locks: a ring of slots and two counters.
//
// Each side keeps a copy of the other's counter and reads the real one only when the copy says that
// the ring is full or empty, so that a busy ring costs one cache miss for many elements (Lee, Bu,
// Chandranmenon: "A lock-free, cache-efficient multi-core synchronization mechanism for line-rate
// network traffic monitoring", 2010). Counters grow for ever and are taken modulo the capacity.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace harp {

inline constexpr std::size_t kCacheLineBytes = 64;

template <typename T>
class SpscRing {
 public:
  /// `capacity` is a power of two.
  explicit SpscRing(std::size_t capacity) : slots_(capacity) {}
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;
  ~SpscRing() = default;

  /// Producer. Null when the ring is full, else the slot that push() will publish.
  T* back() {
    const std::uint64_t tail = producer_.mine.load(std::memory_order_relaxed);
    if (tail - producer_.theirs == slots_.size()) {
      producer_.theirs = consumer_.mine.load(std::memory_order_acquire);
      if (tail - producer_.theirs == slots_.size()) {
        return nullptr;
      }
    }
    return &slot(tail);
  }
  /// Producer, after back() gave a slot.
  void push() {
    producer_.mine.store(producer_.mine.load(std::memory_order_relaxed) + 1,
                         std::memory_order_release);
  }

  /// Consumer. Null when the ring is empty, else its oldest element, or the one `skip` behind it.
  T* front(std::size_t skip = 0) {
    const std::uint64_t head = consumer_.mine.load(std::memory_order_relaxed);
    if (consumer_.theirs - head <= skip) {
      consumer_.theirs = producer_.mine.load(std::memory_order_acquire);
      if (consumer_.theirs - head <= skip) {
        return nullptr;
      }
    }
    return &slot(head + skip);
  }
  /// Consumer: gives the oldest `count` elements' slots back.
  void pop(std::size_t count = 1) {
    consumer_.mine.store(consumer_.mine.load(std::memory_order_relaxed) + count,
                         std::memory_order_release);
  }

 private:
  struct alignas(kCacheLineBytes) Side {
    std::atomic<std::uint64_t> mine{0};
    std::uint64_t theirs = 0;  ///< The other side's counter, as last seen.
  };

  T& slot(std::uint64_t count) { return slots_[count & (slots_.size() - 1)]; }

  Side producer_;
  Side consumer_;
  alignas(kCacheLineBytes) std::vector<T> slots_;
};

}  // namespace harp
