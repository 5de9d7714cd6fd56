// How stacks learn, and say, that a session is over: dead peers, bad paths, nobody there; and
// closes.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/time.hpp"
#include "datapath/datapath.hpp"
#include "protocol/types.hpp"
#include "runtime/backlog.hpp"
#include "runtime/channel.hpp"
#include "runtime/stack.hpp"
#include "runtime/world.hpp"

namespace harp::stack_failures_test {
namespace {

using Life = Channel::Life;

TEST(Stack, a_peer_that_vanishes_is_reported_after_its_timeout) {
  StackConfig config;
  config.session.peer_timeout = std::chrono::seconds(5);
  World world;
  Node& left = world.add(config);
  Node& right = world.add(config);
  const Ends ends = connect(world, left, right);
  const auto accepted = ends.server;
  std::vector<std::byte> buffer(100);
  const auto receive = ends.client->receive(buffer);
  Time last_heard{};
  right.tap->watcher = [&](const Route&, auto, auto) {
    last_heard = world.now;
    return true;
  };
  world.run_for(std::chrono::seconds(20));
  EXPECT_FALSE(ends.client->test(*receive)) << "the peer's stack answers";
  right.stack.reset();
  EXPECT_EQ(accepted->life(), Life::kEnded) << "whoever still has an end of it knows";
  EXPECT_EQ(accepted->end_error(), SessionError::kCancelled);
  const Time vanished = world.now;
  const auto done = answer(world, *ends.client, *receive);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->error, SessionError::kPeerTimeout);
  EXPECT_GE(world.now, vanished + std::chrono::seconds(3));
  EXPECT_LE(world.now, last_heard + std::chrono::seconds(5) + milliseconds(1));
  EXPECT_EQ(ends.client->end_error(), SessionError::kPeerTimeout);
}

TEST(Stack, a_path_that_takes_no_large_packets_any_more_is_reported_as_that_at_both_ends) {
  StackConfig config;
  config.session.peer_timeout = std::chrono::seconds(5);
  World world;
  Node& left = world.add(config);
  Node& right = world.add(config);
  const Ends ends = connect(world, left, right);
  left.tap->watcher = [](const Route&, auto head, auto payload) {
    return head.size() + payload.size() < 1000;
  };
  Message message(100'000, 1);
  message.post(*ends.client, *ends.server);
  const Time began = world.now;
  ASSERT_TRUE(world.run_until([&] { return message.is_done(*ends.client, *ends.server); }));
  EXPECT_LE(world.now, began + std::chrono::seconds(5) + milliseconds(100));
  EXPECT_EQ(message.send_done->error, SessionError::kNoProgress);
  EXPECT_EQ(message.receive_done->error, SessionError::kNoProgress);
  const std::string text = session_error_name(message.receive_done->error);
  EXPECT_NE(text.find("MTU"), std::string::npos) << text;
}

TEST(Stack, a_path_that_is_dark_one_way_is_a_timeout_at_both_ends) {
  StackConfig config;
  config.session.peer_timeout = std::chrono::seconds(5);
  World world;
  Node& left = world.add(config);
  Node& right = world.add(config);
  const Ends ends = connect(world, left, right);
  left.tap->watcher = [](const Route&, auto, auto) { return false; };
  Message message(100, 1);
  message.post(*ends.client, *ends.server);
  ASSERT_TRUE(world.run_until([&] { return message.is_done(*ends.client, *ends.server); }));
  EXPECT_EQ(message.send_done->error, SessionError::kPeerTimeout);
  EXPECT_EQ(message.receive_done->error, SessionError::kPeerTimeout);
}

TEST(Stack, closing_many_says_as_much_of_each_as_closing_few) {
  const auto lines_for = [](std::size_t pairs) {
    World world;
    Node& left = world.add();
    Node& right = world.add();
    std::vector<Ends> all;
    for (std::size_t i = 0; i < pairs; ++i) {
      all.push_back(connect(world, left, right));
    }
    EXPECT_EQ(left.stack->channel_count(), pairs);
    std::vector<std::string> lines;
    for (const Ends& ends : all) {
      EXPECT_NE(left.stack->describe_session(*ends.client), "");
      std::ranges::move(describe_close(*left.stack, *ends.client), std::back_inserter(lines));
      left.stack->close(*ends.client, world.now);
    }
    EXPECT_EQ(left.stack->channel_count(), 0U);
    EXPECT_NE(lines.back().find("data_bytes_sent"), std::string::npos) << "the engine's, at last";
    return lines.size();
  };
  const std::size_t of_one = lines_for(1);
  EXPECT_EQ(lines_for(20), of_one + 19);
}

TEST(Stack, nobody_to_connect_to_is_reported_after_the_connect_timeout) {
  StackConfig config;
  config.session.connect_timeout = std::chrono::seconds(3);
  World world;
  Node& left = world.add(config);
  Node& right = world.add(config);
  const ConnectHandle handle = right.stack->listen(std::make_shared<Backlog>());
  right.stack->stop_listening(handle.listen_id, world.now);
  const Time began = world.now;
  const auto client = left.stack->connect(handle, world.now);
  EXPECT_TRUE(world.run_until([&] { return client->life() == Life::kEnded; }));
  EXPECT_EQ(client->end_error(), SessionError::kConnectTimeout);
  EXPECT_GE(world.now, began + std::chrono::seconds(3));
  EXPECT_LT(world.now, began + std::chrono::seconds(4));
  EXPECT_EQ(left.stack->session_count(), 0U);
  EXPECT_TRUE(world.is_quiet());
}

}  // namespace
}  // namespace harp::stack_failures_test
