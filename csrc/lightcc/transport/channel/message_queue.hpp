// The messages at one end of a channel, from posted to done, and why the channel is over.
//
// Messages are numbered as they are posted, and carried in pieces. They leave in order, each when
// it and all before it have no piece left; what has left is done, and stays so when the channel
// fails, but not when the caller cancels it. How messages are cut, and what a piece is, is the
// transport's business.
//
// Invariant: an open queue holds the messages first() .. end() - 1; one that is over holds none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// The same Status, blaming `rank`, unless the operating system is to blame.
inline Status blame(const Status& status, std::uint32_t rank) {
  return status.code() == ErrorCode::kSystem
             ? status
             : Status(status.code(), status.message(), static_cast<int>(rank));
}

/// `Message` has a number `pieces_left`: those that are not done.
template <typename Message>
class MessageQueue {
 public:
  bool empty() const { return messages_.empty(); }
  std::size_t size() const { return messages_.size(); }
  /// The oldest message that is not done.
  RequestId first() const { return first_; }
  /// The number that the next message gets.
  RequestId end() const { return end_; }

  RequestId push(Message message) {
    messages_.push_back(std::move(message));
    return end_++;
  }

  /// Call only for a message that is here.
  Message& operator[](RequestId request) {
    return messages_[static_cast<std::size_t>(request - first_)];
  }
  const Message& operator[](RequestId request) const {
    return messages_[static_cast<std::size_t>(request - first_)];
  }
  /// Null: the message is done or dropped, or there never was one.
  Message* find(RequestId request) {
    const bool is_here = request >= first_ && request < end_ && !messages_.empty();
    return is_here ? &(*this)[request] : nullptr;
  }

  // hot
  /// One piece of `request` is done. True when a message is, too.
  bool finish_piece(RequestId request) {
    --(*this)[request].pieces_left;
    const RequestId before = first_;
    while (!messages_.empty() && messages_.front().pieces_left == 0) {
      messages_.pop_front();
      ++first_;
    }
    return first_ != before;
  }

  /// Whether the message is done, and may be said to be.
  bool is_done(RequestId request) const { return !cancelled_ && request < first_; }
  /// is_done(), for a channel's test(). Errors: why the channel is over; kInvalidArgument, which
  /// names "test() of `what`", for a message that was never pushed.
  Result<bool> test(RequestId request, const char* what) const {
    if (is_done(request)) {
      return true;
    }
    if (is_over()) {
      return error_;
    }
    if (request >= end_) {
      return make_error(ErrorCode::kInvalidArgument, "test() of %s", what);
    }
    return false;
  }

  bool is_over() const { return !error_.ok(); }
  /// Why the channel is over.
  const Status& error() const { return error_; }
  /// Drops all messages. The first reason counts.
  void fail(const Status& why) {
    if (!is_over()) {
      error_ = why;
    }
    messages_.clear();
  }
  /// After fail(): not even of what was done is it said any more.
  void forget_done() { cancelled_ = true; }

 private:
  std::deque<Message> messages_;
  RequestId first_ = 0;
  RequestId end_ = 0;
  Status error_;
  bool cancelled_ = false;
};

}  // namespace lightcc
