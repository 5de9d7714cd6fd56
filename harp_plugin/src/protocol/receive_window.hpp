// Which packets arrived: each number is accepted once, in any order, within a window above the
// first one that is missing.
//
// A packet is accepted only after its payload has a place; one that must be dropped for want of
// room stays missing, and the sender sends it again.
#pragma once

#include <cstdint>

#include "protocol/ack_body.hpp"
#include "protocol/psn_bitmap.hpp"
#include "protocol/types.hpp"

namespace harp {

class ReceiveWindow {
 public:
  enum class Verdict : std::uint8_t { kNew, kDuplicate, kOutside };

  ReceiveWindow(Psn first, std::uint32_t window_packets)
      : arrived_(window_packets), cum_(first), end_(first) {}

  /// Whether `psn` is new, was here before, or is none that an honest sender could have sent.
  Verdict examine(Psn psn) const;
  /// Takes a packet that is kNew. What is missing may move forward.
  void accept(Psn psn);
  /// The first number that is missing.
  Psn cum() const { return cum_; }
  /// Fills in cum_psn and the SACK words.
  void fill(AckBody& ack) const;

 private:
  PsnBitmap arrived_;  ///< Bits of [cum_, end_); zero elsewhere.
  Psn cum_;
  Psn end_;  ///< One past the highest that arrived.
};

}  // namespace harp
