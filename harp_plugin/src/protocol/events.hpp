// What a session tells its owner: a bounded queue, emptied by the owner after every call.
//
// Room for an event is reserved when the request that will cause it is posted, so nothing is lost
// and nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/types.hpp"

namespace harp {

struct Event {
  enum class Kind : std::uint8_t {
    kConnected,
    kSendDone,     ///< The buffer belongs to the caller again; on success the peer has the bytes.
    kReceiveDone,  ///< The buffer belongs to the caller again; on success it holds `bytes` bytes.
    kPeerClosed,   ///< The peer sends no more messages.
    kClosed,       ///< A graceful close is complete: the peer has everything.
    kFailed,       ///< The session is over; every request was completed with `error` before.
  };

  Kind kind = Kind::kConnected;
  SessionError error = SessionError::kNone;
  std::uint16_t tag = 0;     ///< kReceiveDone: the sender's.
  std::uint64_t cookie = 0;  ///< The request's.
  std::size_t bytes = 0;     ///< kReceiveDone: length of the message.
};

class EventQueue {
 public:
  /// `max_requests` may be outstanding or completed and not polled; some room is kept beside.
  explicit EventQueue(std::size_t max_requests) : ring_(max_requests + kSessionEvents) {}

  std::size_t count() const { return count_; }
  void push(const Event& event) {
    if (count_ == ring_.size()) {
      return;  // Cannot happen: room is reserved.
    }
    ring_[(first_ + count_) % ring_.size()] = event;
    ++count_;
  }
  bool pop(Event& event) {
    if (count_ == 0) {
      return false;
    }
    event = ring_[first_];
    first_ = (first_ + 1) % ring_.size();
    --count_;
    return true;
  }

 private:
  static constexpr std::size_t kSessionEvents = 8;  // Each of them happens once.

  std::vector<Event> ring_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace harp
