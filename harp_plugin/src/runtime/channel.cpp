#include "runtime/channel.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/types.hpp"
#include "sync/doorbells.hpp"

namespace harp {

Channel::Channel(Doorbells& bells, std::size_t bell) : bells_(bells), bell_(bell) {
  for (RequestId i = 0; i < kRequests; ++i) {
    slots_[i].next_free = static_cast<RequestId>(i + 1);
  }
}

std::optional<RequestId> Channel::send(std::span<const std::byte> data, std::uint16_t tag) {
  return post({.is_send = true,
               .request = 0,
               .tag = tag,
               .data = const_cast<std::byte*>(data.data()),
               .bytes = data.size(),
               .taker = {}});
}

std::optional<RequestId> Channel::receive(std::span<std::byte> buffer) {
  Post post;
  post.data = buffer.data();
  post.bytes = buffer.size();
  return this->post(post);
}

std::optional<RequestId> Channel::receive_taken(const Taker& taker) {
  Post post;
  post.taker = taker;
  return this->post(post);
}

std::optional<RequestId> Channel::post(Post post) {
  if (first_free_ == kNone || life() == Life::kEnded) {
    return std::nullopt;
  }
  Post* const slot = posts_.back();
  if (slot == nullptr) {
    return std::nullopt;  // The stack has completed a post, and is about to take it off the ring.
  }
  post.request = first_free_;
  first_free_ = slots_[post.request].next_free;
  *slot = post;
  posts_.push();
  bells_.ring(bell_);
  return post.request;
}

std::optional<Channel::Completion> Channel::test(RequestId request) {
  Slot& slot = slots_[request];
  if (!slot.is_complete.load(std::memory_order_acquire)) {
    // A session that ends completes what it has first: this post is one that it never took.
    const bool is_over =
        life() == Life::kEnded && !slot.is_complete.load(std::memory_order_acquire);
    return is_over ? std::optional<Completion>({.error = end_error()}) : std::nullopt;
  }
  const Completion completion = slot.completion;
  slot.is_complete.store(false, std::memory_order_relaxed);
  slot.next_free = first_free_;
  first_free_ = request;
  return completion;
}

void Channel::complete(RequestId request, const Completion& completion) {
  Slot& slot = slots_[request];
  slot.completion = completion;
  slot.is_complete.store(true, std::memory_order_release);
}

void Channel::end(SessionError error) {
  error_ = error;
  life_.store(Life::kEnded, std::memory_order_release);
}

}  // namespace harp
