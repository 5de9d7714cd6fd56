// Stacks over memory in virtual time.
#include "runtime/stack.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/time.hpp"
#include "protocol/packet.hpp"
#include "protocol/path_set.hpp"
#include "protocol/session.hpp"
#include "protocol/types.hpp"
#include "runtime/backlog.hpp"
#include "runtime/channel.hpp"
#include "runtime/world.hpp"

namespace harp::stack_test {
namespace {

using Life = Channel::Life;

/// Less than a large message has, so that it is under way.
constexpr std::uint64_t kSomePackets = 100;

TEST(Stack, a_message_leaves_before_the_acknowledgement_of_what_it_answers) {
  World world;
  Node& left = world.add();
  Node& right = world.add();
  const Ends there = connect(world, left, right);
  const Ends back = connect(world, right, left);
  std::vector<PacketType> types;
  right.tap->watcher = [&](const Route&, auto head, auto) {
    types.push_back(static_cast<PacketType>(head[0] & std::byte{15}));
    return true;
  };
  for (std::uint64_t round = 0; round < 10; ++round) {
    Message question(100, round);
    Message reply(100, round + 100);
    reply.receive = back.server->receive(reply.received);
    question.receive = there.server->receive(question.received);
    world.run_for(milliseconds(1));  // Each end knows of the other's receive.
    question.send = there.client->send(question.sent, question.tag);
    ASSERT_TRUE(world.run_until([&] {
      question.receive_done = there.server->test(*question.receive);
      return question.receive_done.has_value();
    }));
    types.clear();
    reply.send = back.client->send(reply.sent, reply.tag);
    ASSERT_TRUE(world.run_until([&] {
      return question.is_done(*there.client, *there.server) &&
             reply.is_done(*back.client, *back.server);
    }));
    question.expect_delivered();
    reply.expect_delivered();
    ASSERT_GE(types.size(), 2U);
    EXPECT_EQ(types[0], PacketType::kData);
    EXPECT_EQ(types[1], PacketType::kAck);
  }
}

TEST(Stack, a_short_message_leaves_before_anybody_looks_what_has_arrived) {
  World world;
  Node& left = world.add();
  Node& right = world.add();
  const Ends there = connect(world, left, right);
  const Ends back = connect(world, right, left);
  Message question(100, 1);
  Message reply(100, 2);
  question.post(*there.client, *there.server);
  reply.post(*back.client, *back.server);
  (void)left.stack->turn(world.now);  // Its message waits at the other end now.
  const auto received = [&] { return right.stack->datapath().stats().packets_received; };
  const std::uint64_t before = received();
  std::optional<std::uint64_t> when_sent;
  right.tap->watcher = [&](const Route&, auto head, auto) {
    if (static_cast<PacketType>(head[0] & std::byte{15}) == PacketType::kData && !when_sent) {
      when_sent = received();
    }
    return true;
  };
  (void)right.stack->turn(world.now);
  EXPECT_EQ(when_sent, before);
  EXPECT_GT(received(), before) << "in the same turn, afterwards";
  right.tap->watcher = nullptr;
  ASSERT_TRUE(world.run_until([&] {
    return question.is_done(*there.client, *there.server) &&
           reply.is_done(*back.client, *back.server);
  }));
  question.expect_delivered();
  reply.expect_delivered();
}

TEST(Stack, a_client_connects_to_a_listener) {
  World world;
  Node& client = world.add();
  Node& server = world.add();
  EXPECT_TRUE(client.stack->is_idle());
  const auto backlog = std::make_shared<Backlog>();
  const ConnectHandle handle = server.stack->listen(backlog);
  EXPECT_FALSE(server.stack->is_idle());
  EXPECT_EQ(handle.port, MemoryDatapath::address_of(1).port);
  EXPECT_EQ(handle.mtu_bytes, 1500);

  const auto ours = client.stack->connect(handle, world.now);
  ASSERT_NE(ours, nullptr);
  EXPECT_EQ(ours->life(), Life::kConnecting);
  EXPECT_TRUE(world.run_until([&] { return ours->life() == Life::kOpen; }));
  std::shared_ptr<Channel> theirs;
  EXPECT_TRUE(world.run_until([&] { return (theirs = backlog->take()) != nullptr; }));
  EXPECT_EQ(theirs->life(), Life::kOpen);
  EXPECT_EQ(backlog->take(), nullptr);
  EXPECT_EQ(client.stack->session_count(), 1U);
  EXPECT_EQ(server.stack->session_count(), 1U);
  EXPECT_EQ(server.stack->stats().strangers, 0U);
}

TEST(Stack, listeners_have_identities_and_secrets_of_their_own) {
  World world;
  Node& node = world.add();
  const ConnectHandle first = node.stack->listen(std::make_shared<Backlog>());
  const ConnectHandle second = node.stack->listen(std::make_shared<Backlog>());
  EXPECT_NE(first.listen_id, 0U);
  EXPECT_NE(first.listen_id, second.listen_id);
  EXPECT_NE(first.secret, second.secret);
}

TEST_F(StackPair, messages_both_ways_at_once_fill_the_channel_and_keep_their_order) {
  std::vector<Message> up;
  std::vector<Message> down;
  for (std::size_t i = 0; i < Channel::kRequests / 2; ++i) {
    up.emplace_back(i * 101, i);
    down.emplace_back(20'000 - i * 99, 1000 + i);
  }
  for (std::size_t i = 0; i < up.size(); ++i) {
    up[i].post(*ends.client, *ends.server);
    down[i].post(*ends.server, *ends.client);
  }
  EXPECT_FALSE(ends.client->send({}, 0)) << "as many as can be are outstanding";
  EXPECT_TRUE(world.run_until([&] {
    bool is_done = true;
    for (std::size_t i = 0; i < up.size(); ++i) {
      is_done = up[i].is_done(*ends.client, *ends.server) && is_done;
      is_done = down[i].is_done(*ends.server, *ends.client) && is_done;
    }
    return is_done;
  }));
  for (std::size_t i = 0; i < up.size(); ++i) {
    up[i].expect_delivered();
    down[i].expect_delivered();
  }
  EXPECT_TRUE(ends.client->send({}, 0));
}

TEST(Stack, posts_before_the_connection_are_served_by_it) {
  World world;
  Node& left = world.add();
  Node& right = world.add();
  const auto backlog = std::make_shared<Backlog>();
  const auto client = left.stack->connect(right.stack->listen(backlog), world.now);
  Message message(5000, 1);
  message.send = client->send(message.sent, message.tag);
  std::shared_ptr<Channel> server;
  ASSERT_TRUE(world.run_until([&] { return (server = backlog->take()) != nullptr; }));
  message.receive = server->receive(message.received);
  EXPECT_TRUE(world.run_until([&] { return message.is_done(*client, *server); }));
  message.expect_delivered();
}

TEST(Stack, many_sessions_between_many_stacks_keep_apart) {
  World world;
  constexpr std::size_t kNodes = 4;
  std::vector<Node*> nodes;
  for (std::size_t i = 0; i < kNodes; ++i) {
    nodes.push_back(&world.add());
  }
  std::vector<Ends> sessions;
  std::vector<Message> messages;
  for (std::size_t i = 0; i < 40; ++i) {
    sessions.push_back(
        connect(world, *nodes[i % kNodes], *nodes[(i / 3) % kNodes]));  // Also to itself.
    messages.emplace_back(3000 + i, i);
  }
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    messages[i].post(*sessions[i].client, *sessions[i].server);
  }
  EXPECT_TRUE(world.run_until([&] {
    bool is_done = true;
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      is_done = messages[i].is_done(*sessions[i].client, *sessions[i].server) && is_done;
    }
    return is_done;
  }));
  for (const Message& message : messages) {
    message.expect_delivered();
  }
}

TEST_F(StackPair, a_datapath_that_takes_nothing_for_a_while_delays_and_loses_nothing) {
  Message message(200'000, 1);
  message.post(*ends.client, *ends.server);
  for (int i = 0; i < 20; ++i) {
    left.tap->is_blocked = i % 2 == 0;
    world.run_for(microseconds(300));
  }
  left.tap->is_blocked = false;
  EXPECT_TRUE(world.run_until([&] { return message.is_done(*ends.client, *ends.server); }));
  message.expect_delivered();
}

// --- Ends of sessions

TEST_F(StackPair, a_session_that_is_closed_in_order_ends_without_an_error_on_either_side) {
  transfer(world, *ends.client, *ends.server, 10'000);
  std::vector<std::byte> buffer(100);
  const auto receive = ends.server->receive(buffer);
  left.stack->close(*ends.client, world.now);
  EXPECT_EQ(ends.client->life(), Life::kEnded);
  const auto done = answer(world, *ends.server, *receive);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->error, SessionError::kPeerClosed);
  EXPECT_EQ(left.stack->stats().sessions_failed, 0U);
  EXPECT_EQ(right.stack->stats().sessions_failed, 0U);
  right.stack->close(*ends.server, world.now);
  EXPECT_TRUE(world.run_until(
      [&] { return left.stack->session_count() == 0 && right.stack->session_count() == 0; }));
  EXPECT_TRUE(left.stack->is_idle());
  EXPECT_TRUE(world.is_quiet());
}

TEST_F(StackPair, posts_after_the_peer_has_closed_are_answered_with_that) {
  left.stack->close(*ends.client, world.now);
  world.run_for(milliseconds(10));
  std::vector<std::byte> buffer(100);
  const auto receive = ends.server->receive(buffer);
  if (receive) {
    const auto done = answer(world, *ends.server, *receive);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->error, SessionError::kPeerClosed);
  }
  const auto send = ends.server->send(buffer, 0);
  if (send) {
    const auto done = answer(world, *ends.server, *send);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->error, SessionError::kPeerClosed);
  }
}

/// Closes with sends in flight, with the datapath open or blocked, and takes the buffer away.
void close_in_flight(bool is_blocked, bool is_accepted) {
  World world;
  Node& left = world.add();
  Node& right = world.add();
  const Ends ends = connect(world, left, right);
  std::vector<std::byte> into(1'000'000);
  const auto receive = ends.server->receive(into);
  auto data = std::make_unique<PacketBytes>(pattern(1'000'000, 1));
  const auto begin = data->data();
  const auto end = begin + data->size();
  const auto send = ends.client->send(*data, 0);
  ASSERT_TRUE(send && receive);
  if (is_accepted) {
    ASSERT_TRUE(world.run_until(
        [&] { return left.stack->session_stats().data_packets_sent > kSomePackets; }));
    left.tap->is_blocked = is_blocked;
    ASSERT_TRUE(world.run_until([&] { return left.tap->held() > 0 || !is_blocked; }));
  }
  EXPECT_FALSE(ends.client->test(*send));
  left.stack->close(*ends.client, world.now);
  data.reset();  // Reading it is an error from here on; AddressSanitizer sees it.
  std::size_t reads = 0;
  left.tap->watcher = [&](const Route&, auto, std::span<const std::byte> payload) {
    reads += !payload.empty() && payload.data() >= begin && payload.data() < end ? 1 : 0;
    return true;
  };
  left.tap->is_blocked = false;
  const auto done = answer(world, *ends.server, *receive);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->error, SessionError::kPeerClosed);
  EXPECT_EQ(ends.client->life(), Life::kEnded);
  const auto cancelled = ends.client->test(*send);
  ASSERT_TRUE(cancelled);
  EXPECT_EQ(cancelled->error, SessionError::kCancelled);
  right.stack->close(*ends.server, world.now);
  EXPECT_TRUE(world.run_until(
      [&] { return left.stack->session_count() == 0 && right.stack->session_count() == 0; }));
  EXPECT_EQ(reads, 0U);
}

TEST(Stack, closing_with_sends_in_flight_cancels_them_and_their_buffers_are_not_read_any_more) {
  close_in_flight(false, true);
}

TEST(Stack, closing_while_the_datapath_holds_payloads_gives_their_buffers_back) {
  close_in_flight(true, true);
}

TEST(Stack, closing_before_a_post_was_taken_cancels_it) {
  close_in_flight(false, false);
}

TEST_F(StackPair, a_send_whose_peer_closes_fails_while_its_datapath_is_blocked) {
  // The event gives the buffer back while the layer below still refers to it.
  auto data = std::make_unique<PacketBytes>(pattern(1'000'000, 1));
  std::vector<std::byte> into(data->size());
  const auto receive = ends.server->receive(into);
  const auto send = ends.client->send(*data, 0);
  ASSERT_TRUE(send && receive);
  ASSERT_TRUE(world.run_until(
      [&] { return left.stack->session_stats().data_packets_sent > kSomePackets; }));
  left.tap->is_blocked = true;
  ASSERT_TRUE(world.run_until([&] { return left.tap->held() > 0; }));
  const auto answer_back = ends.server->send(*data, 0);  // So that the close cancels, with a RST.
  ASSERT_TRUE(answer_back);
  right.stack->close(*ends.server, world.now);
  const auto done = answer(world, *ends.client, *send);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->error, SessionError::kPeerClosed);
  data.reset();
  EXPECT_EQ(left.tap->held(), 0U);
  left.tap->is_blocked = false;
  world.run_for(std::chrono::seconds(1));
}

TEST_F(StackPair, a_message_longer_than_its_receive_fails_both_ends) {
  Message message(5000, 1);
  message.received.resize(4999);
  message.post(*ends.client, *ends.server);
  EXPECT_TRUE(world.run_until([&] { return message.is_done(*ends.client, *ends.server); }));
  EXPECT_EQ(message.receive_done->error, SessionError::kMessageTooLong);
  EXPECT_EQ(message.send_done->error, SessionError::kMessageTooLong);
  EXPECT_EQ(ends.client->end_error(), SessionError::kMessageTooLong);
  EXPECT_EQ(ends.server->end_error(), SessionError::kMessageTooLong);
  EXPECT_EQ(left.stack->stats().sessions_failed, 1U);
}

TEST_F(StackPair, a_message_beyond_the_limit_is_refused_and_the_session_goes_on) {
  const std::byte nothing{};
  const auto send = ends.client->send(std::span(&nothing, kMaxMessageBytes + 1), 0);
  ASSERT_TRUE(send);
  const auto done = answer(world, *ends.client, *send);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->error, SessionError::kMessageTooLong);
  transfer(world, *ends.client, *ends.server, 1000);
}

TEST(Stack, what_comes_during_a_turn_did_not_come_when_the_turn_began) {
  static Time clock;
  clock = Time{};  // Not before the turn's, but for one turn that stands still.
  StackConfig config;
  config.paths = 1;
  config.clock = [] { return clock; };
  World world;
  Node& left = world.add(config);
  Node& right = world.add(config);
  const Ends ends = connect(world, left, right);
  std::array<SessionView, 1> sessions;
  ASSERT_EQ(left.stack->list_sessions(sessions), 1U);
  const PathSet& paths = sessions[0].session->paths();
  const Duration before = paths.min_rtt();
  ASSERT_GT(before, Duration::zero());

  std::vector<std::byte> buffer(100);
  ASSERT_TRUE(ends.server->receive(buffer));
  world.run_for(milliseconds(1));
  ASSERT_TRUE(ends.client->send(buffer, 0));
  const Time sent = world.now;
  (void)left.stack->turn(sent);
  clock = sent + microseconds(40);
  (void)right.stack->turn(sent);
  (void)right.stack->turn(sent + microseconds(41));  // Acknowledges.
  (void)left.stack->turn(sent + microseconds(41) + Duration(300));
  EXPECT_EQ(sessions[0].session->sent_packets().in_flight(), 0U);
  EXPECT_EQ(paths.min_rtt(), before) << "40 us cannot be less than what was least";
}

TEST(Stack, stop_listening_ends_what_was_not_accepted_and_nothing_else) {
  World world;
  Node& left = world.add();
  Node& right = world.add();
  const Ends accepted = connect(world, left, right);
  const auto not_accepted = left.stack->connect(accepted.handle, world.now);
  EXPECT_TRUE(world.run_until([&] { return not_accepted->life() == Life::kOpen; }));
  world.run_for(milliseconds(1));
  const auto half_open = left.stack->connect(accepted.handle, world.now);
  const auto elsewhere = std::make_shared<Backlog>();
  const ConnectHandle other = right.stack->listen(elsewhere);
  left.stack->turn(world.now);   // The SYN has left,
  right.stack->turn(world.now);  // and is answered.
  ASSERT_EQ(right.stack->session_count(), 3U);
  right.stack->stop_listening(accepted.handle.listen_id, world.now);
  std::vector<std::byte> buffer(10);
  const auto receive = not_accepted->receive(buffer);
  const auto done = receive ? answer(world, *not_accepted, *receive) : std::nullopt;
  ASSERT_TRUE(done);
  EXPECT_EQ(done->error, SessionError::kPeerClosed);
  EXPECT_TRUE(world.run_until([&] { return half_open->life() == Life::kEnded; }));
  EXPECT_EQ(accepted.backlog->take(), nullptr);
  transfer(world, *accepted.client, *accepted.server, 5000);
  const auto late = left.stack->connect(other, world.now);
  EXPECT_TRUE(world.run_until([&] { return elsewhere->take() != nullptr; })) << "others go on";
  EXPECT_TRUE(world.run_until([&] { return right.stack->session_count() == 2; }));
}

TEST_F(StackPair, its_end_ends_its_channels) {
  std::vector<std::byte> buffer(10);
  const auto receive = ends.client->receive(buffer);
  left.stack.reset();
  EXPECT_EQ(ends.client->life(), Life::kEnded);
  const auto done = ends.client->test(*receive);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->error, SessionError::kCancelled);
}

TEST_F(StackPair, closing_twice_or_elsewhere_does_no_harm) {
  const Ends other = connect(world, left, right);
  right.stack->close(*ends.client, world.now);  // It belongs to another stack.
  transfer(world, *ends.client, *ends.server, 100);
  left.stack->close(*ends.client, world.now);
  left.stack->close(*ends.client, world.now);
  world.run_for(std::chrono::seconds(40));
  const Ends later = connect(world, left, right);  // May have its slot.
  left.stack->close(*ends.client, world.now);
  transfer(world, *later.client, *later.server, 100);
  transfer(world, *other.client, *other.server, 100);
}

// --- Over time

TEST(Stack, many_sessions_one_after_the_other_leave_nothing_behind) {
  constexpr std::uint64_t kSessions = 1100;  // More than a listener serves at once.
  World world;
  Node& left = world.add();
  Node& right = world.add();
  const auto backlog = std::make_shared<Backlog>();
  const ConnectHandle handle = right.stack->listen(backlog);
  std::size_t maximum = 0;
  for (std::uint64_t i = 0; i < kSessions; ++i) {
    const auto client = left.stack->connect(handle, world.now);
    std::shared_ptr<Channel> server;
    ASSERT_TRUE(world.run_until([&] {
      server = server ? server : backlog->take();
      return server && client->life() == Life::kOpen;
    })) << i;
    Message message(i % 3 * 1000, i);
    message.post(*client, *server);
    ASSERT_TRUE(world.run_until([&] { return message.is_done(*client, *server); })) << i;
    message.expect_delivered();
    left.stack->close(*client, world.now);
    if (i % 2 == 0) {
      world.run_for(microseconds(10));
    }
    right.stack->close(*server, world.now);
    world.run_for(milliseconds(200));
    maximum = std::max(maximum, left.stack->session_count());
  }
  EXPECT_LT(maximum, 20U) << "slots come back after their second";
  EXPECT_TRUE(world.run_until(
      [&] { return left.stack->session_count() == 0 && right.stack->session_count() == 0; }));
  EXPECT_EQ(left.stack->stats().sessions_begun, kSessions);
  EXPECT_EQ(right.stack->stats().sessions_begun, kSessions);
  EXPECT_EQ(left.stack->stats().sessions_failed + right.stack->stats().sessions_failed, 0U);
  EXPECT_TRUE(left.stack->is_idle());
  EXPECT_TRUE(world.is_quiet());
  EXPECT_GT(left.stack->session_stats().data_bytes_sent, 900'000U) << "past ones count";
}

TEST_F(StackPair, connected_and_idle_stacks_are_quiet) {
  transfer(world, *ends.client, *ends.server, 100'000);
  world.run_for(std::chrono::seconds(2));
  EXPECT_TRUE(world.is_quiet());
  const std::uint64_t before = world.steps;
  world.run_for(std::chrono::hours(1));
  EXPECT_LT(world.steps - before, 10U);
  transfer(world, *ends.server, *ends.client, 100);
}

TEST_F(StackPair, waiting_for_a_message_costs_a_heartbeat_now_and_then) {
  Message message(100, 1);
  message.receive = ends.server->receive(message.received);
  world.run_for(std::chrono::seconds(2));
  const std::uint64_t before = world.steps;
  world.run_for(std::chrono::seconds(100));
  EXPECT_LT(world.steps - before, 2000U) << "one heartbeat a second, and its answer";
  message.send = ends.client->send(message.sent, message.tag);
  EXPECT_TRUE(world.run_until([&] { return message.is_done(*ends.client, *ends.server); }));
  message.expect_delivered();
}

TEST(Stack, an_idle_turn_says_that_there_was_nothing_to_do) {
  World world;
  Node& node = world.add();
  EXPECT_EQ(node.stack->next_deadline(), kNever);
  EXPECT_FALSE(node.stack->turn(world.now));
  EXPECT_FALSE(node.stack->turn(world.now + std::chrono::hours(1)));
  EXPECT_EQ(node.stack->stats().turns, 2U);
  EXPECT_EQ(node.stack->stats().idle_turns, 2U);
}

}  // namespace
}  // namespace harp::stack_test
