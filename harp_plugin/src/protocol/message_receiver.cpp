#include "protocol/message_receiver.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/serial.hpp"
#include "protocol/events.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {

MessageReceiver::MessageReceiver(const Limits& limits)
    : limits_(limits), messages_(std::bit_ceil(limits.max_receives + limits.eager_packets + 1)) {}

void MessageReceiver::start(MsgSeq first, std::uint16_t pss) {
  // Receives that were posted before the peer said what its first number is move to their places.
  const std::size_t shift = first & (messages_.size() - 1);
  std::ranges::rotate(messages_, messages_.end() - static_cast<std::ptrdiff_t>(shift));
  oldest_ = first;
  next_to_post_ += first;
  pss_ = pss;
}

MessageReceiver::Verdict MessageReceiver::post(const ReceiveRequest& request, EventQueue& events) {
  const MsgSeq msg = next_to_post_;
  Message& message = at(msg);
  for (std::uint16_t frame = message.first_frame; frame != kNoFrame; frame = frames_[frame].next) {
    if (frames_[frame].msg_off + frames_[frame].len > request.room()) {
      return Verdict::kTooLong;
    }
  }
  ++next_to_post_;
  ++posted_;
  message.is_posted = true;
  message.request = request;
  copy_frames(message);
  if (is_complete(message)) {
    complete(msg, events);
  }
  return Verdict::kTaken;
}

bool MessageReceiver::contradicts(const Message& message, const Header& header) const {
  const std::size_t end = std::size_t{header.msg_off} + header.len;
  const bool last = (header.flags & flag::kLast) != 0;
  return message.is_done || header.len > pss_ || header.msg_off % pss_ != 0 ||
         end > kMaxMessageBytes || (!last && header.len != pss_) ||
         (message.total_bytes != kUnknown && (last || end > message.total_bytes)) ||
         (last && message.received_bytes + header.len > end) ||
         (message.received_packets > 0 && message.tag != header.tag);
}

MessageReceiver::Verdict MessageReceiver::on_data(const PacketView& packet,
                                                  EventQueue& events,
                                                  Placement& placement) {  // hot
  const Header& header = packet.header;
  const std::int32_t distance = serial_distance(oldest_, header.msg_seq);
  if (distance < 0) {
    return Verdict::kViolation;
  }
  if (distance >= static_cast<std::int32_t>(messages_.size())) {
    return Verdict::kNoRoom;
  }
  Message& message = at(header.msg_seq);
  if (contradicts(message, header)) {
    return Verdict::kViolation;
  }
  const Verdict verdict = put(message, packet, placement);
  if (verdict != Verdict::kTaken) {
    return verdict;
  }
  placement.payload = packet.body.first(header.len);
  placement.msg_seq = header.msg_seq;
  placement.msg_off = header.msg_off;
  message.tag = header.tag;
  message.received_bytes += header.len;
  ++message.received_packets;
  if ((header.flags & flag::kLast) != 0) {
    message.total_bytes = std::size_t{header.msg_off} + header.len;
  }
  if (is_complete(message)) {
    complete(header.msg_seq, events);
  }
  return Verdict::kTaken;
}

MessageReceiver::Verdict MessageReceiver::put(Message& message,
                                              const PacketView& packet,
                                              Placement& placement) {
  const Header& header = packet.header;
  if (!message.is_posted) {
    return take_frame(message, header, placement) ? Verdict::kTaken : Verdict::kNoRoom;
  }
  if (std::size_t{header.msg_off} + header.len > message.request.room()) {
    return Verdict::kTooLong;
  }
  if (header.len > 0 && message.request.taker.take != nullptr) {
    placement.action = Placement::Action::kTake;
    placement.taker = message.request.taker;
  } else if (header.len > 0) {
    placement.action = Placement::Action::kCopy;
    placement.to = message.request.buffer.data() + header.msg_off;
  }
  return Verdict::kTaken;
}

bool MessageReceiver::take_frame(Message& message, const Header& header, Placement& placement) {
  if (frame_bytes_.empty()) {
    frame_bytes_.resize(std::size_t{limits_.eager_packets} * pss_);
    frames_.resize(limits_.eager_packets);
    for (std::size_t frame = 0; frame < frames_.size(); ++frame) {
      frames_[frame].next =
          frame + 1 < frames_.size() ? static_cast<std::uint16_t>(frame + 1) : kNoFrame;
    }
    free_frame_ = 0;
  }
  if (free_frame_ == kNoFrame) {
    return false;
  }
  const std::uint16_t frame = free_frame_;
  free_frame_ = frames_[frame].next;
  frames_[frame] = {.msg_off = header.msg_off, .len = header.len, .next = message.first_frame};
  message.first_frame = frame;
  placement.action = Placement::Action::kCopy;
  placement.to = frame_bytes_.data() + std::size_t{frame} * pss_;
  return true;
}

void MessageReceiver::copy_frames(Message& message) {
  while (message.first_frame != kNoFrame) {
    const std::uint16_t index = message.first_frame;
    EagerFrame& frame = frames_[index];
    const std::byte* const bytes = frame_bytes_.data() + std::size_t{index} * pss_;
    const Taker& taker = message.request.taker;
    if (frame.len > 0 && taker.take != nullptr) {
      taker.show(frame.msg_off, {bytes, frame.len});
    } else if (frame.len > 0) {
      std::memcpy(message.request.buffer.data() + frame.msg_off, bytes, frame.len);
      eager_bytes_copied_ += frame.len;
    }
    message.first_frame = frame.next;
    frame.next = free_frame_;
    free_frame_ = index;
  }
}

bool MessageReceiver::is_complete(const Message& message) const {
  return message.is_posted && !message.is_done && message.received_packets > 0 &&
         message.received_bytes == message.total_bytes;
}

void MessageReceiver::complete(MsgSeq msg, EventQueue& events) {
  Message& message = at(msg);
  message.is_done = true;
  --posted_;
  events.push({.kind = Event::Kind::kReceiveDone,
               .tag = message.tag,
               .cookie = message.request.cookie,
               .bytes = message.total_bytes});
  move_window();
}

void MessageReceiver::move_window() {
  while (at(oldest_).is_done) {
    at(oldest_) = {};
    ++oldest_;
  }
}

void MessageReceiver::fail_from(MsgSeq first_lost, SessionError error, EventQueue& events) {
  for (MsgSeq msg = serial_max(oldest_, first_lost); serial_less(msg, next_to_post_); ++msg) {
    Message& message = at(msg);
    if (message.is_posted && !message.is_done) {
      message.is_done = true;
      --posted_;
      events.push(
          {.kind = Event::Kind::kReceiveDone, .error = error, .cookie = message.request.cookie});
    }
  }
  move_window();
}

}  // namespace harp
