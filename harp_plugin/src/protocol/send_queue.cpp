#include "protocol/send_queue.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/events.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {

SendQueue::SendQueue(MsgSeq first, std::uint32_t max_messages)
    : messages_(max_messages), oldest_(first), cutting_(first), next_(first) {}

void SendQueue::post(const SendRequest& request) {
  at(next_) = {.request = request, .uncut_or_unacked = 1};
  uncut_bytes_ += request.data.size();
  ++next_;
  ++unfinished_;
}

std::uint8_t SendQueue::cut(std::uint16_t len) {  // hot
  uncut_bytes_ -= len;
  if (len < left_to_cut()) {
    ++at(cutting_).uncut_or_unacked;
    cut_off_ += len;
    return 0;
  }
  const bool is_solo = cut_off_ == 0;
  ++cutting_;
  cut_off_ = 0;
  return is_solo ? flag::kLast | flag::kSolo : flag::kLast;
}

std::span<const std::byte> SendQueue::payload(MsgSeq msg,
                                              std::uint32_t off,
                                              std::uint16_t len) const {
  return at(msg).request.data.subspan(off, len);
}

void SendQueue::on_acked(MsgSeq msg, EventQueue& events) {  // hot
  if (--at(msg).uncut_or_unacked == 0) {
    finish_one(msg, events);
  }
}

void SendQueue::finish_one(MsgSeq msg, EventQueue& events) {
  --unfinished_;
  events.push({.kind = Event::Kind::kSendDone, .cookie = at(msg).request.cookie});
  while (oldest_ != next_ && at(oldest_).uncut_or_unacked == 0) {
    ++oldest_;
  }
}

void SendQueue::fail_all(SessionError error, EventQueue& events) {
  for (; oldest_ != next_; ++oldest_) {
    if (at(oldest_).uncut_or_unacked != 0) {
      events.push(
          {.kind = Event::Kind::kSendDone, .error = error, .cookie = at(oldest_).request.cookie});
    }
  }
  cutting_ = next_;
  cut_off_ = 0;
  uncut_bytes_ = 0;
  unfinished_ = 0;
}

}  // namespace harp
