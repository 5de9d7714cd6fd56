// The messages that wait to be sent or acknowledged, and how they are cut into packets.
//
// Every message starts with a packet of its own and is cut at multiples of the PSS. Nothing is
// copied: a packet refers to the caller's bytes, which stay the session's until the last packet of
// the message is acknowledged. Messages may complete in any order; their slots are reused in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/events.hpp"
#include "protocol/types.hpp"

namespace harp {

struct SendRequest {
  std::span<const std::byte> data{};
  std::uint16_t tag = 0;
  std::uint64_t cookie = 0;
};

class SendQueue {
 public:
  /// `max_messages` is a power of two.
  SendQueue(MsgSeq first, std::uint32_t max_messages);

  bool has_room() const { return next_ - oldest_ < messages_.size(); }
  void post(const SendRequest& request);

  bool has_uncut() const { return cutting_ != next_; }
  std::size_t uncut_bytes() const { return uncut_bytes_; }
  /// In packets, at most one too many for each message.
  std::size_t uncut_packets(std::uint16_t pss) const {
    return next_ - cutting_ + uncut_bytes_ / pss;
  }
  /// The next packet: its message, where in it it begins, its bytes.
  MsgSeq cutting() const { return cutting_; }
  std::uint32_t cut_off() const { return static_cast<std::uint32_t>(cut_off_); }
  std::uint16_t cut_len(std::uint16_t pss) const {
    return static_cast<std::uint16_t>(std::min<std::size_t>(left_to_cut(), pss));
  }
  bool is_at_start() const { return cut_off_ == 0; }
  /// Cuts it off, with `len` bytes. Its flags.
  std::uint8_t cut(std::uint16_t len);

  std::span<const std::byte> payload(MsgSeq msg, std::uint32_t off, std::uint16_t len) const;
  std::uint16_t tag(MsgSeq msg) const { return at(msg).request.tag; }

  /// A packet of `msg` was acknowledged; completes the message with its last one.
  void on_acked(MsgSeq msg, EventQueue& events);
  /// Completes everything that is left with `error`.
  void fail_all(SessionError error, EventQueue& events);

  std::size_t unfinished() const { return unfinished_; }
  MsgSeq next() const { return next_; }

 private:
  struct Message {
    SendRequest request;
    /// Packets that are not acknowledged, and 1 until all are cut.
    std::uint32_t uncut_or_unacked = 0;
  };

  Message& at(MsgSeq msg) { return messages_[msg & (messages_.size() - 1)]; }
  const Message& at(MsgSeq msg) const { return messages_[msg & (messages_.size() - 1)]; }
  std::size_t left_to_cut() const { return at(cutting_).request.data.size() - cut_off_; }
  void finish_one(MsgSeq msg, EventQueue& events);

  std::vector<Message> messages_;
  MsgSeq oldest_;
  MsgSeq cutting_;
  MsgSeq next_;
  std::size_t cut_off_ = 0;
  std::size_t uncut_bytes_ = 0;
  std::size_t unfinished_ = 0;
};

}  // namespace harp
