// Stacks in one thread and in virtual time, joined by memory: each run is a function of its seed
// and of the packets that it lets pass.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.hpp"
#include "base/time.hpp"
#include "datapath/memory.hpp"
#include "datapath/packets.hpp"
#include "datapath/tap.hpp"
#include "protocol/handle.hpp"
#include "runtime/backlog.hpp"
#include "runtime/channel.hpp"
#include "runtime/stack.hpp"

namespace harp {

using std::chrono::microseconds;
using std::chrono::milliseconds;

struct Node {
  Tap* tap = nullptr;
  std::unique_ptr<Stack> stack;
};

class World {
 public:
  explicit World(std::size_t mtu_bytes = 1500, std::uint64_t seed = 1)
      : network(mtu_bytes, 4096), rng_(seed) {}

  Node& add(StackConfig config = {}) {
    config.entropy = [this](std::span<std::byte> out) {
      std::ranges::generate(out, [this] { return static_cast<std::byte>(rng_()); });
    };
    auto tap = std::make_unique<Tap>(std::make_unique<MemoryDatapath>(network, nodes_.size()));
    auto node = std::make_unique<Node>();
    node->tap = tap.get();
    node->stack = std::make_unique<Stack>(std::move(tap), std::move(config));
    nodes_.push_back(std::move(node));
    return *nodes_.back();
  }

  /// Gives every stack its turns until `is_done`, `most` has passed, or nothing will happen any
  /// more. Returns whether it is done.
  bool run_until(const std::function<bool()>& is_done, Duration maximum = std::chrono::minutes(2)) {
    const Time end = now + maximum;
    while (!is_done()) {
      bool worked = false;
      Time next = kNever;
      for (const auto& node : nodes_) {
        if (node->stack != nullptr) {
          worked = node->stack->turn(now) || worked;
          next = std::min(next, node->stack->next_deadline());
        }
      }
      if (now >= end) {
        return false;
      }
      ++steps;
      now = worked ? now + microseconds(1) : std::min(std::max(next, now + Duration(1)), end);
    }
    return true;
  }
  void run_for(Duration duration) {
    (void)run_until([] { return false; }, duration);
  }
  /// Nobody will do anything by himself.
  bool is_quiet() const {
    return std::ranges::all_of(nodes_, [](const auto& node) {
      return node->stack == nullptr || node->stack->next_deadline() == kNever;
    });
  }

  Time now{std::chrono::seconds(1)};
  MemoryNetwork network;
  std::uint64_t steps = 0;

 private:
  Rng rng_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

/// A session's two ends, connected.
struct Ends {
  ConnectHandle handle;
  std::shared_ptr<Backlog> backlog = std::make_shared<Backlog>();
  std::shared_ptr<Channel> client;
  std::shared_ptr<Channel> server;
};

inline Ends connect(World& world, Node& from, Node& to) {
  Ends ends;
  ends.handle = to.stack->listen(ends.backlog);
  ends.client = from.stack->connect(ends.handle, world.now);
  EXPECT_NE(ends.client, nullptr);
  EXPECT_TRUE(world.run_until([&] {
    ends.server = ends.server ? ends.server : ends.backlog->take();
    return ends.server && ends.client->life() == Channel::Life::kOpen;
  }));
  return ends;
}

/// Two stacks and a session between them.
class StackPair : public testing::Test {
 protected:
  World world;
  Node& left = world.add();
  Node& right = world.add();
  const Ends ends = connect(world, left, right);
};

/// One message from one channel to another.
struct Message {
  Message(std::size_t bytes, std::uint64_t seed)
      : sent(pattern(bytes, seed)), received(bytes), tag(static_cast<std::uint16_t>(seed)) {}

  void post(Channel& from, Channel& to) {
    receive = to.receive(received);
    send = from.send(sent, tag);
    ASSERT_TRUE(send && receive);
  }
  /// Both ends have an answer.
  bool is_done(Channel& from, Channel& to) {
    send_done = send_done ? send_done : from.test(*send);
    receive_done = receive_done ? receive_done : to.test(*receive);
    return send_done && receive_done;
  }
  void expect_delivered() const {
    ASSERT_TRUE(send_done && receive_done);
    EXPECT_EQ(send_done->error, SessionError::kNone);
    EXPECT_EQ(receive_done->error, SessionError::kNone);
    EXPECT_EQ(receive_done->bytes, sent.size());
    EXPECT_EQ(receive_done->tag, tag);
    EXPECT_TRUE(received == sent) << sent.size() << " bytes";
  }

  PacketBytes sent;
  PacketBytes received;
  std::uint16_t tag;
  std::optional<RequestId> send;
  std::optional<RequestId> receive;
  std::optional<Channel::Completion> send_done;
  std::optional<Channel::Completion> receive_done;
};

inline void transfer(
    World& world, Channel& from, Channel& to, std::size_t bytes, std::uint64_t seed = 1) {
  Message message(bytes, seed);
  message.post(from, to);
  ASSERT_TRUE(world.run_until([&] { return message.is_done(from, to); })) << bytes;
  message.expect_delivered();
}

/// The answer to `request`, once there is one.
inline std::optional<Channel::Completion> answer(World& world,
                                                 Channel& channel,
                                                 RequestId request) {
  std::optional<Channel::Completion> completion;
  (void)world.run_until([&] { return (completion = channel.test(request)).has_value(); });
  return completion;
}

}  // namespace harp
