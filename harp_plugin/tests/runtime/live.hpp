// Connections between live engines, and waiting for what they do.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "endpoint/connection.hpp"
#include "protocol/handle.hpp"
#include "runtime/channel.hpp"
#include "runtime/clock.hpp"
#include "runtime/engine.hpp"
#include "runtime/world.hpp"

namespace harp {

/// Asks again and again. The bound is against hanging; no machine is so slow.
inline bool eventually(const std::function<bool()>& is_so) {
  const Time end = clock_now() + std::chrono::minutes(2);
  while (!is_so()) {
    if (clock_now() > end) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

/// The server's side goes first, so that the listener outlives what it accepted.
struct LivePair {
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<Connection> server;
  std::unique_ptr<Connection> client;
};

inline LivePair connect_live(Engine& from, Engine& to) {
  LivePair pair;
  const auto backlog = std::make_shared<Backlog>();
  const ConnectHandle handle =
      to.with_stack([&](Stack& stack, Time) { return stack.listen(backlog); });
  pair.acceptor = std::make_unique<Acceptor>(to, handle.listen_id, backlog);
  pair.client = std::make_unique<Connection>(
      from, from.with_stack([&](Stack& stack, Time now) { return stack.connect(handle, now); }));
  EXPECT_TRUE(eventually([&] {
    pair.server = pair.server ? std::move(pair.server) : pair.acceptor->accept();
    return pair.client->poll() == Channel::Life::kOpen && pair.server != nullptr;
  }));
  return pair;
}

/// The answer to `request`. `other` is driven as well, where one thread plays both ends.
inline Channel::Completion finished(Connection& connection,
                                    RequestId request,
                                    Connection* other = nullptr) {
  std::optional<Channel::Completion> completion;
  EXPECT_TRUE(eventually([&] {
    if (other != nullptr) {
      (void)other->poll();
    }
    return (completion = connection.test(request)).has_value();
  }));
  return completion.value_or(Channel::Completion{.error = SessionError::kProtocolViolation});
}

/// A message from one end to the other, verified; one thread drives both.
inline void transfer_live(Connection& from, Connection& to, std::size_t bytes, std::uint64_t seed) {
  Message message(bytes, seed);
  message.receive = to.receive(message.received);
  message.send = from.send(message.sent, message.tag);
  ASSERT_TRUE(message.send && message.receive);
  ASSERT_TRUE(eventually([&] {
    message.send_done = message.send_done ? message.send_done : from.test(*message.send);
    message.receive_done = message.receive_done ? message.receive_done : to.test(*message.receive);
    return message.send_done && message.receive_done;
  }));
  message.expect_delivered();
}

}  // namespace harp
