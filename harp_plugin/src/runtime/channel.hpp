// What an application and a stack share of one session: a ring of posts one way, and a word per
// request the other way.
//
//   application                               stack
//     send(), receive()   -- ring -->           takes posts, in order
//     test()              <-- slot.state --     complete()
//
// No lock, no system call. The application's side is used by one thread at a time, the stack's by
// whoever holds the engine's driver lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/message_receiver.hpp"
#include "protocol/types.hpp"
#include "sync/doorbells.hpp"
#include "sync/spsc_ring.hpp"

namespace harp {

using RequestId = std::uint16_t;

// Its parts are apart because two threads use them.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class Channel {
 public:
  /// Posts that may be outstanding, sends and receives together. Power of two.
  static constexpr std::size_t kRequests = 128;

  enum class Life : std::uint8_t { kConnecting, kOpen, kEnded };
  struct Post {
    bool is_send = false;
    RequestId request = 0;
    std::uint16_t tag = 0;
    std::byte* data = nullptr;  ///< A send only reads it.
    std::size_t bytes = 0;
    Taker taker{};  ///< A receive may have it instead of a buffer.
  };
  struct Completion {
    SessionError error = SessionError::kNone;
    std::uint16_t tag = 0;  ///< A receive gets the sender's.
    std::size_t bytes = 0;  ///< A receive gets the message's length.
  };

  Channel(Doorbells& bells, std::size_t bell);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() = default;

  // --- The application's side

  /// Posts; nothing where kRequests are outstanding, or the session has ended. The buffer belongs
  /// to the session until test() has said that the request is complete.
  std::optional<RequestId> send(std::span<const std::byte> data, std::uint16_t tag);
  std::optional<RequestId> receive(std::span<std::byte> buffer);
  /// Receives through a taker, which is called by whoever drives the engine, a call at a time.
  std::optional<RequestId> receive_taken(const Taker& taker);
  /// Nothing while the request is under way. Its id is free again after an answer.
  std::optional<Completion> test(RequestId request);

  Life life() const { return life_.load(std::memory_order_acquire); }
  /// Why it ended, once life() is kEnded.
  SessionError end_error() const {
    return error_ == SessionError::kNone ? SessionError::kPeerClosed : error_;
  }

  // --- The stack's side

  Post* next_post() { return posts_.front(); }
  void pop_post() { posts_.pop(); }
  void complete(RequestId request, const Completion& completion);
  void open() { life_.store(Life::kOpen, std::memory_order_release); }
  void end(SessionError error);
  std::size_t bell() const { return bell_; }

 private:
  struct alignas(kCacheLineBytes) Slot {
    std::atomic<bool> is_complete{false};
    Completion completion;
    RequestId next_free = 0;  ///< The application's.
  };
  static constexpr RequestId kNone = kRequests;

  std::optional<RequestId> post(Post post);

  std::atomic<Life> life_{Life::kConnecting};
  SessionError error_ = SessionError::kNone;
  Doorbells& bells_;
  std::size_t bell_;
  SpscRing<Post> posts_{kRequests};
  std::array<Slot, kRequests> slots_;
  RequestId first_free_ = 0;
};

}  // namespace harp
