// How much the receiver lets a sender send: what has a buffer, and a little more.
//
// Packets of messages for which a receive is posted need no credit: they go straight to their
// buffer. Of later messages at most `eager_packets` packets may be sent; the receiver has a frame
// for each, so a slow application fills no memory and no packet is dropped for want of room.
//
// Both ends reckon in packets, and the packet number counts them: what is charged is the distance
// from the first packet of the first message without a buffer to the next packet.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/serial.hpp"
#include "protocol/types.hpp"

namespace harp {

class SendCredit {
 public:
  /// `max_messages`: how many messages the sender may have outstanding.
  SendCredit(MsgSeq first_msg, std::uint32_t eager_packets, std::uint32_t max_messages)
      : msg_limit_(first_msg),
        eager_packets_(eager_packets),
        first_psns_(std::bit_ceil(eager_packets + max_messages + 1)) {}

  /// The first packet of `msg` is about to be `psn`.
  void on_message_started(MsgSeq msg, Psn psn) { first_psns_[slot_of(msg)] = psn; }

  /// Takes what an acknowledgement says. Returns whether there is more credit than before.
  bool on_ack(MsgSeq msg_limit) {
    const bool more = serial_less(msg_limit_, msg_limit);
    msg_limit_ = serial_max(msg_limit_, msg_limit);
    return more;
  }

  /// Whether packet `psn` may be sent for the first time, as the next packet of `msg`; `starts`
  /// where it is the first one of its message.
  bool permits(MsgSeq msg, Psn psn, bool starts) const {
    if (serial_less(msg, msg_limit_)) {
      return true;
    }
    const Psn uncovered = msg == msg_limit_ && starts ? psn : first_psns_[slot_of(msg_limit_)];
    return psn - uncovered < eager_packets_;
  }

 private:
  std::size_t slot_of(MsgSeq msg) const { return msg & (first_psns_.size() - 1); }

  MsgSeq msg_limit_;
  std::uint32_t eager_packets_;
  std::vector<Psn> first_psns_;  ///< Where messages from msg_limit_ on started.
};

}  // namespace harp
