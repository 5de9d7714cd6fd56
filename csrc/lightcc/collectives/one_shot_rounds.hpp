// Rounds in which the ranks of one host read each other's inputs: what a small all-reduce in one
// shot is made of. Each rank puts its input where all can read it, and combines all inputs itself.
//
// Every rank passes every round once: with an input (it enters), or without, where somebody has
// given the round up. If all have entered, they have met. If they then find that all mean the same,
// the inputs are theirs. A rank that has waited long enough gives the round up for all. One word
// decides between the last that enters and the first that gives up, so all ranks see the same.
//
// There is memory for two rounds. A rank enters a round when all have left the one before the last,
// so nothing is overwritten that somebody may read. A rank that never comes, because it has joined
// or asks for other things, thus holds up nobody: after two rounds no other rank enters any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lightcc {

class OneShotRounds {
 public:
  static constexpr std::size_t kMaxMembers = 16;
  /// The inputs of all members together have no more bytes.
  static constexpr std::size_t kMaxTotal = std::size_t{64} << 10;
  /// Nor has what tells one operation from others.
  static constexpr std::size_t kMaxIdentity = 248;

  /// What 2 to kMaxMembers members need of shared memory.
  static std::size_t bytes(std::size_t members);
  /// `memory`: bytes(members) of them, 128-byte aligned, and zeroed before any rank had it.
  /// `index`: this rank's among the members.
  OneShotRounds(std::span<std::byte> memory, std::size_t members, std::size_t index);

  /// Bytes that one input may have.
  std::size_t max_input() const { return stride_; }

  enum class Entry : std::uint8_t {
    kEntered,  ///< look() tells what comes of it.
    kGivenUp,  ///< So was the round, and maybe the next; this rank has passed them.
    kClosed,   ///< Not all ranks have left the round before the last, or nobody waits.
  };
  /// Enters the next round; not between kEntered and leave(). At most kMaxIdentity and max_input()
  /// bytes. After rounds that were given up, and where it may not be the first, it enters only
  /// where somebody waits.
  Entry enter(std::span<const std::byte> identity,
              std::span<const std::byte> input,
              bool may_be_first = true);

  enum class View : std::uint8_t {
    kWaiting,  ///< Not all have entered.
    kMet,      ///< All have, and mean the same.
    kApart,    ///< All have, but do not.
    kGivenUp,
  };
  View look() const;
  /// After kMet, until leave(): those of all members, `max_input()` bytes apart.
  std::span<const std::byte> inputs() const;
  /// Gives up the round that this rank has entered, for all. False: all have entered it.
  bool give_up();
  /// Leaves the round that this rank has entered, which is given up, or of which look() has told.
  void leave();

 private:
  // Starts the memory of every second round.
  struct alignas(128) Area {
    alignas(128) std::atomic<std::uint64_t> state;  // See the source.
    alignas(128) std::atomic<std::uint32_t> left;   // Ranks that have left, of all its rounds.
  };
  struct Card {
    std::uint64_t identity_bytes;
    std::byte identity[kMaxIdentity];  // NOLINT(modernize-avoid-c-arrays): shared memory.
  };

  static std::size_t area_bytes(std::size_t members);
  static std::size_t stride(std::size_t members);
  std::byte* area_memory() const { return memory_.data() + (round_ & 1) * area_bytes(members_); }
  Area& area() const { return *reinterpret_cast<Area*>(area_memory()); }
  Card& card(std::size_t member) const;
  std::byte* input(std::size_t member) const;
  // Passes in the area of this round once it is over, and once the one before was.
  std::uint32_t passes_at_end() const;
  bool is_given_up(std::uint64_t state) const;
  bool pass(std::uint64_t state);
  bool all_mean_the_same() const;

  std::span<std::byte> memory_;
  std::size_t members_;
  std::size_t index_;
  std::size_t stride_;
  std::uint64_t round_ = 0;  // The last that this rank has passed; counted from 1.
};

}  // namespace lightcc
