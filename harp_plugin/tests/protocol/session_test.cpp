// A session against its peer with a perfect wire: what users of it see.
#include "protocol/session.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/pipe.hpp"

namespace harp::session_test {
namespace {

using Kind = Event::Kind;

struct Buffers {
  std::vector<std::byte> sent;
  std::vector<std::byte> received;
  explicit Buffers(std::size_t bytes, std::size_t capacity, unsigned seed = 1)
      : sent(pattern(bytes, seed)), received(capacity, std::byte{0xcc}) {}
};

void expect_equal(const Buffers& buffers) {
  EXPECT_TRUE(std::equal(buffers.sent.begin(), buffers.sent.end(), buffers.received.begin()));
}

TEST(Session, connects_without_the_peers_application) {
  Pipe pipe;
  pipe.exchange();
  EXPECT_TRUE(pipe.client->is_connected());
  ASSERT_TRUE(pipe.server);
  EXPECT_TRUE(pipe.server->is_connected());
  EXPECT_EQ(events_of(*pipe.client).at(0).kind, Kind::kConnected);
  EXPECT_EQ(events_of(*pipe.server).at(0).kind, Kind::kConnected);
}

TEST(Session, what_follows_a_pause_stays_on_one_path_where_a_burst_takes_it) {
  SessionConfig left = client_config();
  SessionConfig right = server_config();
  left.max_pss = right.max_pss = 1408;
  left.eager_packets = right.eager_packets = 64;
  Pipe pipe(left, right);
  pipe.connect();
  std::size_t packets = 0;
  const auto paths_of = [&](std::size_t message_packets) {
    const Buffers buffers(message_packets * 1408, 0);
    EXPECT_EQ(pipe.client->post_send({.data = buffers.sent}, pipe.now), PostResult::kPosted);
    std::set<PathIndex> paths;
    packets = 0;
    for (const auto& packet : packets_of(*pipe.client, pipe.now)) {
      if (type_of(packet) == PacketType::kData) {
        paths.insert(parse_packet(packet)->header.path);
        ++packets;
      }
      pipe.to_server(packet);
    }
    std::vector<std::byte> received(buffers.sent.size());
    EXPECT_EQ(pipe.server->post_receive({.buffer = received}, pipe.now), PostResult::kPosted);
    pipe.run_for(milliseconds(5));
    EXPECT_EQ(received, buffers.sent);
    events_of(*pipe.client);
    events_of(*pipe.server);
    return paths.size();
  };
  for (std::size_t i = 0; i < 20; ++i) {
    paths_of(50);  // The window grows.
  }
  const auto burst = static_cast<std::size_t>(pipe.client->pacer().burst_packets());
  ASSERT_EQ(burst, 45U);
  for (const std::size_t few : {1U, 2U, 7U, 8U, 9U, 44U}) {
    EXPECT_EQ(paths_of(few), 1U) << few;
    EXPECT_EQ(paths_of(burst), 1U) << "after " << few;
    EXPECT_EQ(packets, burst);
  }
}

TEST(Session, uses_the_smaller_pss) {
  SessionConfig small = server_config();
  small.max_pss = 64;
  Pipe pipe(client_config(), small);
  pipe.connect();
  EXPECT_EQ(pipe.client->pss(), 64);
  EXPECT_EQ(pipe.server->pss(), 64);
}

TEST(Session, delivers_messages_of_every_size_around_the_seams) {
  for (const std::size_t bytes : std::initializer_list<std::size_t>{
           0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 10000}) {
    Pipe pipe;
    pipe.connect();
    Buffers buffers(bytes, bytes + 7);
    ASSERT_EQ(pipe.server->post_receive({.buffer = buffers.received, .cookie = 5}, pipe.now),
              PostResult::kPosted);
    ASSERT_EQ(pipe.client->post_send({.data = buffers.sent, .tag = 3, .cookie = 6}, pipe.now),
              PostResult::kPosted);
    pipe.run_for(milliseconds(50));
    const auto received = events_of(*pipe.server);
    ASSERT_EQ(received.size(), 1U) << bytes;
    EXPECT_EQ(received[0].kind, Kind::kReceiveDone);
    EXPECT_EQ(received[0].error, SessionError::kNone);
    EXPECT_EQ(received[0].cookie, 5U);
    EXPECT_EQ(received[0].bytes, bytes);
    EXPECT_EQ(received[0].tag, 3);
    const auto sent = events_of(*pipe.client);
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(sent[0].kind, Kind::kSendDone);
    EXPECT_EQ(sent[0].cookie, 6U);
    expect_equal(buffers);
    EXPECT_EQ(buffers.received.back(), std::byte{0xcc}) << "wrote behind the message";
  }
}

TEST(Session, the_kth_message_goes_to_the_kth_receive) {
  Pipe pipe;
  pipe.connect();
  std::vector<Buffers> all;
  for (unsigned i = 0; i < 20; ++i) {
    all.emplace_back(i * 37, 1000, i);
  }
  for (std::uint64_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(pipe.server->post_receive({.buffer = all[i].received, .cookie = i}, pipe.now),
              PostResult::kPosted);
  }
  for (std::uint64_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(pipe.client->post_send({.data = all[i].sent, .cookie = i}, pipe.now),
              PostResult::kPosted);
  }
  pipe.run_for(milliseconds(50));
  const auto events = events_of(*pipe.server);
  ASSERT_EQ(events.size(), all.size());
  for (const Event& event : events) {
    EXPECT_EQ(event.bytes, all[event.cookie].sent.size());
    expect_equal(all[event.cookie]);
  }
}

TEST(Session, a_late_receive_gets_what_waited_for_it) {
  Pipe pipe;
  pipe.connect();
  Buffers buffers(5 * 128 + 1, 5 * 128 + 1);
  ASSERT_EQ(pipe.client->post_send({.data = buffers.sent}, pipe.now), PostResult::kPosted);
  pipe.run_for(milliseconds(50));
  EXPECT_EQ(events_of(*pipe.client).size(), 1U) << "the eager message is acknowledged";
  ASSERT_EQ(pipe.server->post_receive({.buffer = buffers.received}, pipe.now), PostResult::kPosted);
  ASSERT_EQ(events_of(*pipe.server).size(), 1U);
  expect_equal(buffers);
  EXPECT_EQ(pipe.server->eager_bytes_copied(), buffers.sent.size());
}

TEST(Session, without_receives_at_most_the_eager_budget_is_sent) {
  Pipe pipe;
  pipe.connect();
  const auto data = pattern(100 * 128, 1);
  ASSERT_EQ(pipe.client->post_send({.data = data}, pipe.now), PostResult::kPosted);
  pipe.run_for(milliseconds(200));
  EXPECT_EQ(pipe.server->stats().data_packets_received, server_config().eager_packets);
  EXPECT_EQ(pipe.server->stats().no_room, 0U);
  EXPECT_EQ(pipe.client->stats().credit_stalls, 1U);
}

TEST(Session, zero_byte_messages_cost_credit_too) {
  Pipe pipe;
  pipe.connect();
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(pipe.client->post_send({.cookie = i}, pipe.now), PostResult::kPosted);
  }
  pipe.run_for(milliseconds(200));
  EXPECT_EQ(events_of(*pipe.client).size(), server_config().eager_packets);
  EXPECT_EQ(pipe.server->stats().no_room, 0U);
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(pipe.server->post_receive({.cookie = i}, pipe.now), PostResult::kPosted);
  }
  pipe.run_for(milliseconds(200));
  EXPECT_EQ(events_of(*pipe.server).size(), 100U);
  EXPECT_EQ(events_of(*pipe.client).size(), 100U - server_config().eager_packets);
}

TEST(Session, a_message_larger_than_its_receive_is_an_error_on_both_ends) {
  for (const bool receive_first : {true, false}) {
    Pipe pipe;
    pipe.connect();
    Buffers buffers(3 * 128, 2 * 128 + 64);
    const auto post_receive = [&] {
      ASSERT_EQ(pipe.server->post_receive({.buffer = buffers.received}, pipe.now),
                PostResult::kPosted);
    };
    if (receive_first) {
      post_receive();
    }
    ASSERT_EQ(pipe.client->post_send({.data = buffers.sent}, pipe.now), PostResult::kPosted);
    pipe.run_for(milliseconds(50));
    if (!receive_first) {
      post_receive();
    }
    pipe.run_for(milliseconds(50));
    EXPECT_EQ(pipe.server->error(), SessionError::kMessageTooLong);
    EXPECT_EQ(pipe.client->error(), SessionError::kMessageTooLong);
    const auto events = events_of(*pipe.server);
    ASSERT_EQ(events.size(), 2U);
    EXPECT_EQ(events[0].kind, Kind::kReceiveDone);
    EXPECT_EQ(events[0].error, SessionError::kMessageTooLong);
    EXPECT_EQ(events[1].kind, Kind::kFailed);
  }
}

TEST(Session, both_directions_work_at_once) {
  Pipe pipe;
  pipe.connect();
  Buffers up(5000, 5000, 1);
  Buffers down(7000, 7000, 2);
  ASSERT_EQ(pipe.server->post_receive({.buffer = up.received}, pipe.now), PostResult::kPosted);
  ASSERT_EQ(pipe.client->post_receive({.buffer = down.received}, pipe.now), PostResult::kPosted);
  ASSERT_EQ(pipe.client->post_send({.data = up.sent}, pipe.now), PostResult::kPosted);
  ASSERT_EQ(pipe.server->post_send({.data = down.sent}, pipe.now), PostResult::kPosted);
  pipe.run_for(milliseconds(50));
  EXPECT_EQ(events_of(*pipe.client).size(), 2U);
  EXPECT_EQ(events_of(*pipe.server).size(), 2U);
  expect_equal(up);
  expect_equal(down);
}

TEST(Session, posts_before_the_connection_are_served_by_it) {
  Pipe pipe;
  Buffers up(500, 500, 1);
  Buffers down(300, 300, 2);
  ASSERT_EQ(pipe.client->post_receive({.buffer = down.received}, pipe.now), PostResult::kPosted);
  ASSERT_EQ(pipe.client->post_send({.data = up.sent}, pipe.now), PostResult::kPosted);
  pipe.exchange();
  ASSERT_EQ(pipe.server->post_receive({.buffer = up.received}, pipe.now), PostResult::kPosted);
  ASSERT_EQ(pipe.server->post_send({.data = down.sent}, pipe.now), PostResult::kPosted);
  pipe.run_for(milliseconds(50));
  expect_equal(up);
  expect_equal(down);
}

TEST(Session, a_full_queue_says_so_and_takes_more_after_events) {
  SessionConfig config = client_config();
  config.max_sends = 4;
  Pipe pipe(config);
  pipe.connect();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(pipe.client->post_send({}, pipe.now), PostResult::kPosted);
  }
  EXPECT_EQ(pipe.client->post_send({}, pipe.now), PostResult::kFull);
  pipe.run_for(milliseconds(50));
  EXPECT_EQ(events_of(*pipe.client).size(), 4U);
  EXPECT_EQ(pipe.client->post_send({}, pipe.now), PostResult::kPosted);
}

TEST(Session, only_data_that_was_not_there_is_news) {
  Pipe pipe;
  pipe.connect();
  const auto sent = pattern(100, 1);
  ASSERT_EQ(pipe.client->post_send({.data = sent, .tag = 0, .cookie = 1}, pipe.now),
            PostResult::kPosted);
  const auto packets = packets_of(*pipe.client, pipe.now);
  ASSERT_EQ(packets.size(), 1U);
  hand_over(*pipe.server, packets[0], pipe.now);
  EXPECT_TRUE(pipe.server->heard_update());
  hand_over(*pipe.server, packets[0], pipe.now);
  EXPECT_NE(pipe.server->heard_path(), kNoPath) << "authentic";
  EXPECT_FALSE(pipe.server->heard_update()) << "a repetition";
  for (const auto& answer : packets_of(*pipe.server, pipe.now)) {
    hand_over(*pipe.client, answer, pipe.now);
    EXPECT_FALSE(pipe.client->heard_update()) << "an acknowledgement";
  }
}

TEST(Session, what_waits_on_either_host_is_no_part_of_the_round_trip) {
  Pipe pipe;
  pipe.connect();
  std::vector<std::byte> buffer(100);
  ASSERT_EQ(pipe.server->post_receive({.buffer = buffer}, pipe.now), PostResult::kPosted);
  pipe.run_for(milliseconds(100));
  ASSERT_EQ(pipe.client->post_send({.data = buffer}, pipe.now), PostResult::kPosted);
  const auto packets = packets_of(*pipe.client, pipe.now);
  ASSERT_EQ(packets.size(), 1U);

  // 1 ms on the way, 30 ms in the server's buffer, 1 ms back, 50 ms in the client's.
  pipe.now += milliseconds(31);
  (void)pipe.server->on_packet(packets[0], pipe.now, {.waited = milliseconds(30)});
  const auto answers = packets_of(*pipe.server, pipe.now);
  ASSERT_EQ(answers.size(), 1U);
  pipe.now += milliseconds(51);
  (void)pipe.client->on_packet(answers[0], pipe.now, {.waited = milliseconds(50)});
  const auto view = parse_packet(packets[0]);
  ASSERT_TRUE(view);
  const RttEstimator& rtt = pipe.client->paths().at(view->header.path).rtt;
  EXPECT_LT(rtt.smoothed(), milliseconds(3)) << "in units of 256 ns";
  EXPECT_GT(rtt.response().smoothed(), milliseconds(3)) << "an eighth of 32 ms, or all of it";
}

}  // namespace
}  // namespace harp::session_test
