// One bit per session, set by whoever posted to it, collected by the session's engine: two words
// are read instead of a ring per session.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace harp {

class Doorbells {
 public:
  static constexpr std::size_t kCount = std::size_t{64} * 64;

  /// Thread: any. What was written before is seen by the collector. Sequentially consistent, so
  /// that a caller who then finds the collector awake has been heard (BackgroundDriver).
  void ring(std::size_t bell) {
    const std::size_t word = bell / 64;
    words_[word].fetch_or(std::uint64_t{1} << (bell % 64), std::memory_order_seq_cst);
    summary_.fetch_or(std::uint64_t{1} << word, std::memory_order_seq_cst);
  }
  bool any() const { return summary_.load(std::memory_order_seq_cst) != 0; }
  /// Thread: the collector. Calls `visit` with each bell that was rung since it was last collected.
  template <typename Visit>
  bool collect(const Visit& visit) {
    if (summary_.load(std::memory_order_relaxed) == 0) {
      return false;
    }
    std::uint64_t words = summary_.exchange(0, std::memory_order_acquire);
    for (; words != 0; words &= words - 1) {
      const auto word = static_cast<std::size_t>(std::countr_zero(words));
      std::uint64_t bells = words_[word].exchange(0, std::memory_order_acquire);
      for (; bells != 0; bells &= bells - 1) {
        visit(word * 64 + static_cast<std::size_t>(std::countr_zero(bells)));
      }
    }
    return true;
  }

 private:
  std::atomic<std::uint64_t> summary_{0};
  std::array<std::atomic<std::uint64_t>, 64> words_{};
};

}  // namespace harp
