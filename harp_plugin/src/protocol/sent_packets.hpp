// The packets that were sent and not yet all acknowledged: a ring of records by packet number.
//
// Every unacknowledged record is in exactly one list: that of the path on which it was last sent,
// in the order of sending, or that of lost packets, in the order of their loss. The lists are
// threaded through the records, so that sending, losing and acknowledging are O(1) and allocate
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.hpp"
#include "protocol/psn_bitmap.hpp"
#include "protocol/types.hpp"

namespace harp {

struct SentPacket {
  enum class State : std::uint8_t { kFree, kInFlight, kLost, kAcked };

  Time sent_at{};  ///< Last transmission.
  MsgSeq msg_seq = 0;
  std::uint32_t msg_off = 0;
  PathSeq path_seq = 0;  ///< The last transmission's.
  std::uint16_t len = 0;
  PathIndex path = 0;  ///< The last transmission's.
  std::uint16_t next = 0;
  std::uint16_t previous = 0;
  State state = State::kFree;
  std::uint8_t flags = 0;  ///< kLast, kSolo.
  bool is_fin = false;
};

class SentPackets {
 public:
  static constexpr std::size_t kLostList = kMaxPaths;

  /// `window_packets` is a power of two, at most kMaxWindowPackets.
  SentPackets(Psn first, std::uint32_t window_packets);

  /// The record of packet number next(), to be filled; it is in no list until on_sent().
  SentPacket& add();
  /// It was sent (again) now, on `path`: goes to the end of that path's list.
  void on_sent(Psn psn, PathIndex path, PathSeq path_seq, Time now);
  /// Moves a record from its path's list to the lost ones.
  void on_lost(Psn psn);
  /// It arrived. The window moves forward over everything that did.
  void on_acked(Psn psn);

  SentPacket& at(Psn psn) { return records_[psn & mask_]; }
  const SentPacket& at(Psn psn) const { return records_[psn & mask_]; }
  /// Bits of [psn, psn + 64) that are acknowledged or were never sent.
  std::uint64_t acked_word(Psn psn) const { return acked_.word_at(psn); }

  Psn oldest() const { return oldest_; }
  Psn next() const { return next_; }
  bool all_acked() const { return oldest_ == next_; }
  std::uint32_t in_flight() const { return in_flight_; }
  std::uint32_t in_flight_on(PathIndex path) const { return lists_[path].count; }
  std::uint32_t lost() const { return lists_[kLostList].count; }

  bool list_is_empty(std::size_t list) const { return lists_[list].count == 0; }
  /// The packet number at the front of a list that is not empty.
  Psn front(std::size_t list) const { return psn_at(lists_[list].head); }

 private:
  struct List {
    std::uint16_t head = 0;
    std::uint16_t tail = 0;
    std::uint32_t count = 0;
  };

  /// Does nothing to a record that is in none.
  void take_off_its_list(Psn psn);
  void append(std::size_t list, Psn psn);
  void unlink(std::size_t list, Psn psn);
  Psn psn_at(std::uint16_t index) const;

  std::uint32_t mask_;
  Psn oldest_;
  Psn next_;
  std::uint32_t in_flight_ = 0;
  std::vector<SentPacket> records_;
  PsnBitmap acked_;
  std::vector<List> lists_;
};

}  // namespace harp
