// Words that one thread writes and any other, or another process, reads whole: a sequence lock.
//
// The first word counts: odd while the others are being written, and two more each time that they
// were. A reader that finds the same even number before and after has read what was written at one
// time; else it tries again. The writer never waits, and readers write nothing, so that the words
// may lie in a file that others map read-only.
//
// Every word is atomic, so nothing is a race. Words are stored with release and loaded with acquire
// instead of with fences, which cost nothing more on x86 and which thread sanitizers understand: a
// reader that gets any word of a later writing has also got the odd number before it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace harp {

class SeqWords {
 public:
  /// In front of the words: the count, which is 0 where nothing was ever written.
  static constexpr std::size_t kHeadWords = 1;

  /// `words`: the count and what it guards; they outlive this. Zeroes at first.
  explicit SeqWords(std::span<std::uint64_t> words) : words_(words) {}

  /// Thread: one at a time. Replaces the first values; there are at most as many as there is room.
  void write(std::span<const std::uint64_t> values) {
    const std::uint64_t count = at(0).load(std::memory_order_relaxed);
    at(0).store(count + 1, std::memory_order_relaxed);
    for (std::size_t i = 0; i < values.size(); ++i) {
      at(kHeadWords + i).store(values[i], std::memory_order_release);  // With try_read()'s acquire.
    }
    at(0).store(count + 2, std::memory_order_release);  // With the first load of try_read().
  }
  /// Thread: any. False where a writing was under way, or nothing was ever written; `out` is then
  /// anything.
  bool try_read(std::span<std::uint64_t> out) const {
    const std::uint64_t before = at(0).load(std::memory_order_acquire);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = at(kHeadWords + i).load(std::memory_order_acquire);
    }
    return before != 0 && before % 2 == 0 && at(0).load(std::memory_order_relaxed) == before;
  }
  std::size_t room() const { return words_.size() - kHeadWords; }

 private:
  using Word = std::atomic_ref<std::uint64_t>;
  static_assert(Word::is_always_lock_free, "another process could not read it");
  Word at(std::size_t index) const { return Word(words_[index]); }

  std::span<std::uint64_t> words_;
};

}  // namespace harp
