// One member's view of the shared memory of a ShmGroup: who may write which slot, and who may read
// it.
//
// Scatter windows carry what one member has for one other: slots are numbered 0, 1, 2, ... for each
// ordered pair, whoever else takes part, so a send between two members disturbs nobody. Result
// windows carry what one member has for all: slots are numbered by rounds, which all members count
// alike.
//
// Memory order: a counter is stored (release) after the bytes that it announces, and loaded before
// they are touched. Loads are seq_cst, which costs nothing on x86 and ARMv8, so that a member that
// raised its SleepWord and looks once more cannot miss what was published before a ring()
// (transport/shm/doorbell.hpp).
//
// Counters of other members are only ever compared, with the answer "yes" or "not yet". Slot
// numbers and lengths come from this member's own count, so a corrupt counter can spoil results but
// never reaches outside the windows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lightcc/collectives/shm/shm_layout.hpp"
#include "lightcc/transport/shm/doorbell.hpp"

namespace lightcc {

class ShmWindows {
 public:
  /// `memory` holds layout.total_bytes() and outlives this.
  ShmWindows(std::span<std::byte> memory,
             std::size_t rank,
             const ShmLayout& layout,
             std::vector<Doorbell> doorbells);

  std::size_t rank() const { return rank_; }
  std::size_t size() const { return layout_.size; }
  const ShmLayout& layout() const { return layout_; }
  /// The `step`-th member after this one, so that members do not all begin with the same peer.
  std::size_t peer(std::size_t step) const {
    const std::size_t member = rank_ + step;
    return member < layout_.size ? member : member - layout_.size;
  }

  // Scatter windows. hot.
  bool can_send(std::size_t peer) {
    Pair& pair = pairs_[peer];
    return within(pair.sent, pair.seen_taken) || within(pair.sent, see_taken(pair));
  }
  std::byte* send_slot(std::size_t peer) {
    return pairs_[peer].send_window + offset(pairs_[peer].sent);
  }
  /// Publishes the slot; ring(peer) afterwards.
  void mark_sent(std::size_t peer) { store(pairs_[peer].mine->sent, ++pairs_[peer].sent); }
  bool can_take(std::size_t peer) {
    Pair& pair = pairs_[peer];
    return reached(pair.seen_sent, pair.taken + 1) || reached(see_sent(pair), pair.taken + 1);
  }
  const std::byte* take_slot(std::size_t peer) const {
    return pairs_[peer].take_window + offset(pairs_[peer].taken);
  }
  /// Gives the slot back; ring(peer) afterwards.
  void mark_taken(std::size_t peer) { store(pairs_[peer].mine->taken, ++pairs_[peer].taken); }

  // Result windows. hot.
  /// The number of the next operation's first round.
  std::uint64_t round() const { return round_; }
  /// Ends an operation of `rounds` rounds. All of them count as read by this member.
  void finish_rounds(std::uint64_t rounds);
  /// Whether this member may write its slot of `round`: all others have read what was there.
  bool can_publish(std::uint64_t round);
  std::byte* result_slot(std::uint64_t round) {
    return memory_ + layout_.result_slot(rank_, round % layout_.depth);
  }
  void mark_published(std::uint64_t round) { store(mine_->published, round + 1); }
  bool is_published(std::size_t member, std::uint64_t round) {
    Member& of = members_[member];
    return reached(of.seen_published, round + 1) || reached(see_published(of), round + 1);
  }
  const std::byte* result_slot_of(std::size_t member, std::uint64_t round) const {
    return memory_ + layout_.result_slot(member, round % layout_.depth);
  }
  /// This member has read all slots of `round` and of those before it; ring_all() afterwards.
  void mark_consumed(std::uint64_t round) {
    consumed_ = round + 1;
    store(mine_->consumed, consumed_);
  }

  void ring(std::size_t peer) const { doorbells_[peer].ring(); }
  void ring_all() const {
    for (std::size_t step = 1; step < layout_.size; ++step) {
      ring(peer(step));
    }
  }

 private:
  struct Pair {
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
    std::uint64_t seen_sent = 0;  // What the peer had published when last looked.
    std::uint64_t seen_taken = 0;
    ShmPairLine* mine = nullptr;
    ShmPairLine* theirs = nullptr;
    std::byte* send_window = nullptr;
    const std::byte* take_window = nullptr;
  };
  struct Member {
    std::uint64_t seen_published = 0;
    std::uint64_t seen_consumed = 0;
    ShmMemberLine* line = nullptr;
  };

  static void store(std::uint64_t& counter, std::uint64_t value) {
    std::atomic_ref<std::uint64_t>(counter).store(value, std::memory_order_release);
  }
  static std::uint64_t load(std::uint64_t& counter) {
    return std::atomic_ref<std::uint64_t>(counter).load(std::memory_order_seq_cst);
  }
  /// Whether `seen` has come to `wanted`; right across the wrap of 64 bits.
  static bool reached(std::uint64_t seen, std::uint64_t wanted) {
    return static_cast<std::int64_t>(seen - wanted) >= 0;
  }
  bool within(std::uint64_t sent, std::uint64_t taken) const {
    return reached(taken + layout_.depth, sent + 1);
  }
  std::size_t offset(std::uint64_t slot) const { return slot % layout_.depth * layout_.slot_bytes; }
  static std::uint64_t see_sent(Pair& pair) { return pair.seen_sent = load(pair.theirs->sent); }
  static std::uint64_t see_taken(Pair& pair) { return pair.seen_taken = load(pair.theirs->taken); }
  static std::uint64_t see_published(Member& of) {
    return of.seen_published = load(of.line->published);
  }

  std::byte* memory_;
  std::size_t rank_;
  ShmLayout layout_;
  std::vector<Doorbell> doorbells_;
  ShmMemberLine* mine_;
  std::vector<Pair> pairs_;
  std::vector<Member> members_;
  std::uint64_t round_ = 0;
  std::uint64_t consumed_ = 0;
};

}  // namespace lightcc
