// A session against wires and peers that fail: what was promised for each kind of failure.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/pipe.hpp"
#include "protocol/session.hpp"

namespace harp::session_faults_test {
namespace {

using std::chrono::seconds;
using Kind = Event::Kind;

struct Transfer : Pipe {
  explicit Transfer(std::size_t bytes) : sent(pattern(bytes, 1)), received(bytes) {
    connect();
    EXPECT_EQ(server->post_receive({.buffer = received}, now), PostResult::kPosted);
  }
  void send() { EXPECT_EQ(client->post_send({.data = sent}, now), PostResult::kPosted); }
  void drop_first_data_packet() {
    drops = [left = 1](bool from_client, const PacketBytes& packet) mutable {
      return from_client && type_of(packet) == PacketType::kData && left-- > 0;
    };
  }
  bool is_complete() {
    const auto events = events_of(*client);
    return !events.empty() && events[0].error == SessionError::kNone && sent == received;
  }
  std::vector<std::byte> sent;
  std::vector<std::byte> received;
};

TEST(SessionFaults, a_syn_with_another_secret_is_ignored_and_leaves_nothing) {
  Pipe pipe;
  pipe.client = std::make_unique<Session>(client_config(), Secret{}, kListenId, pipe.now);
  pipe.run_for(seconds(1));
  EXPECT_FALSE(pipe.server);
  EXPECT_EQ(pipe.listener.session_count(), 0U);
  pipe.run_for(seconds(60));
  EXPECT_EQ(pipe.client->error(), SessionError::kConnectTimeout);
  EXPECT_TRUE(pipe.client->is_finished());
}

TEST(SessionFaults, a_repeated_syn_makes_no_second_session) {
  Pipe pipe;
  const auto syn = packets_of(*pipe.client, pipe.now).at(0);
  pipe.to_server(syn);
  Session* const first = pipe.server.get();
  pipe.to_server(syn);
  EXPECT_EQ(pipe.server.get(), first);
  EXPECT_EQ(pipe.listener.session_count(), 1U);
}

TEST(SessionFaults, any_one_lost_handshake_packet_is_repaired) {
  for (const PacketType lost : {PacketType::kSyn, PacketType::kSynAck, PacketType::kConf}) {
    Pipe pipe;
    int drops = 1;
    pipe.drops = [&](bool, const PacketBytes& packet) {
      return type_of(packet) == lost && drops-- > 0;
    };
    pipe.run_for(seconds(1));
    EXPECT_TRUE(pipe.client->is_connected());
    EXPECT_TRUE(pipe.server && pipe.server->is_connected());
    EXPECT_LT(drops, 1) << "the fault happened";
  }
}

TEST(SessionFaults, packets_that_are_too_large_for_the_path_bring_the_pss_down) {
  SessionConfig large = client_config();
  large.max_pss = 8896;
  SessionConfig server = server_config();
  server.max_pss = 8896;
  Pipe pipe(large, server);
  pipe.drops = [](bool, const PacketBytes& packet) { return packet.size() + kIpUdpBytes > 1500; };
  pipe.run_for(seconds(10));
  ASSERT_TRUE(pipe.client->is_connected() && pipe.server && pipe.server->is_connected());
  EXPECT_EQ(pipe.client->pss(), 1408);
  EXPECT_EQ(pipe.server->pss(), 1408);
}

TEST(SessionFaults, a_lost_packet_is_found_by_order_without_a_timeout) {
  Transfer transfer(20 * 128);
  transfer.drop_first_data_packet();
  transfer.send();
  transfer.run_for(milliseconds(500));
  EXPECT_TRUE(transfer.is_complete());
  EXPECT_EQ(transfer.client->stats().retransmitted_order, 1U);
  EXPECT_EQ(transfer.client->stats().retransmitted_timeout, 0U);
}

TEST(SessionFaults, a_lost_tail_is_found_by_the_probe) {
  Transfer transfer(100);
  transfer.drop_first_data_packet();
  transfer.send();
  transfer.run_for(milliseconds(500));
  EXPECT_TRUE(transfer.is_complete());
  EXPECT_EQ(transfer.client->stats().tail_probes, 1U);
  EXPECT_EQ(transfer.client->stats().retransmitted_timeout, 0U);
}

TEST(SessionFaults, a_network_that_is_dark_for_a_while_is_survived_by_timeouts) {
  Transfer transfer(20 * 128);
  transfer.drops = [](bool, const PacketBytes&) { return true; };
  transfer.send();
  transfer.run_for(seconds(3));
  EXPECT_GT(transfer.client->stats().retransmitted_timeout, 0U);
  transfer.drops = nullptr;
  transfer.run_for(seconds(2));
  EXPECT_TRUE(transfer.is_complete());
}

/// A transfer whose packets have all timed out.
struct TimedOut : Transfer {
  TimedOut() : Transfer(20 * 128) {
    window = client->congestion().window_packets();
    send();
    originals = packets_of(*client, now);
    while (client->stats().retransmitted_timeout == 0) {
      now = std::max(client->next_deadline(), now + Duration(1));
      repetitions = packets_of(*client, now);
    }
    EXPECT_LT(client->congestion().window_packets(), window);
  }
  void arrive(const std::vector<PacketBytes>& packets) {
    for (const PacketBytes& packet : packets) {
      to_server(packet);
    }
    for (const PacketBytes& answer : packets_of(*server, now)) {
      hand_over(*client, answer, now);
    }
  }
  double window = 0;
  std::vector<PacketBytes> originals;
  std::vector<PacketBytes> repetitions;  ///< Sent since the timeout.
};

TEST(SessionFaults, an_answer_to_what_was_sent_before_a_timeout_undoes_it) {
  TimedOut late;
  late.arrive(late.originals);
  EXPECT_GE(late.client->congestion().window_packets(), late.window);
}

TEST(SessionFaults, a_repetition_that_the_peer_did_not_need_undoes_its_timeout) {
  TimedOut late;
  std::vector<PacketBytes> both = late.originals;
  both.insert(both.end(), late.repetitions.begin(), late.repetitions.end());
  late.arrive(both);
  EXPECT_GE(late.client->congestion().window_packets(), late.window);
}

TEST(SessionFaults, an_answer_to_a_repetition_leaves_the_timeout_as_it_was) {
  TimedOut lost;
  lost.arrive(lost.repetitions);
  EXPECT_LT(lost.client->congestion().window_packets(), lost.window);
}

TEST(SessionFaults, every_packet_may_arrive_twice) {
  Transfer transfer(20 * 128);
  transfer.drops = [&](bool from_client, const PacketBytes& packet) {
    hand_over(from_client ? *transfer.server : *transfer.client, packet, transfer.now);
    return false;
  };
  transfer.send();
  transfer.run_for(milliseconds(500));
  EXPECT_TRUE(transfer.is_complete());
  EXPECT_EQ(transfer.server->stats().data_packets_received, 20U);
  EXPECT_GE(transfer.server->stats().duplicates, 20U);
  EXPECT_EQ(events_of(*transfer.server).size(), 1U);
}

TEST(SessionFaults, forged_and_stale_packets_change_nothing) {
  Transfer transfer(128);
  transfer.send();
  auto packets = packets_of(*transfer.client, transfer.now);
  ASSERT_FALSE(packets.empty());
  for (std::size_t bit = 0; bit < packets[0].size() * 8; ++bit) {
    auto forged = packets[0];
    forged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    hand_over(*transfer.server, forged, transfer.now);
  }
  EXPECT_EQ(transfer.server->stats().data_packets_received, 0U);
  EXPECT_GT(transfer.server->stats().bad_auth, 0U);
  EXPECT_EQ(transfer.received, std::vector<std::byte>(128)) << "no byte was placed";
  hand_over(*transfer.server, packets[0], transfer.now);
  EXPECT_EQ(transfer.received, transfer.sent);
}

TEST(SessionFaults, a_dead_peer_is_an_error_on_both_kinds_of_request_within_the_timeout) {
  Transfer transfer(128);
  transfer.drops = [](bool, const PacketBytes&) { return true; };
  transfer.send();
  const Time died = transfer.now;
  transfer.run(died + seconds(29));
  EXPECT_EQ(transfer.client->error(), SessionError::kNone);
  transfer.run(died + seconds(32));
  EXPECT_EQ(transfer.client->error(), SessionError::kPeerTimeout);
  EXPECT_EQ(transfer.server->error(), SessionError::kPeerTimeout) << "a posted receive is enough";
  const auto events = events_of(*transfer.server);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, Kind::kReceiveDone);
  EXPECT_EQ(events[1].kind, Kind::kFailed);
}

TEST(SessionFaults, an_idle_session_sends_nothing_and_cannot_fail) {
  Pipe pipe;
  pipe.connect();
  pipe.run_for(milliseconds(100));
  const auto sent = pipe.client->stats().packets_sent;
  pipe.drops = [](bool, const PacketBytes&) { return true; };
  pipe.run_for(seconds(600));
  EXPECT_EQ(pipe.client->stats().packets_sent, sent);
  EXPECT_TRUE(pipe.client->is_connected());
}

TEST(SessionFaults, an_application_that_is_slow_for_three_timeouts_is_no_error) {
  Pipe pipe;
  pipe.connect();
  const auto data = pattern(100 * 128, 1);
  std::vector<std::byte> received(data.size());
  std::vector<std::byte> never(8);
  EXPECT_EQ(pipe.client->post_send({.data = data}, pipe.now), PostResult::kPosted);
  EXPECT_EQ(pipe.client->post_receive({.buffer = never}, pipe.now), PostResult::kPosted);
  pipe.run_for(seconds(90));  // Housekeeping answers; nobody posts a receive.
  EXPECT_EQ(pipe.client->error(), SessionError::kNone);
  EXPECT_EQ(pipe.server->post_receive({.buffer = received}, pipe.now), PostResult::kPosted);
  pipe.run_for(seconds(1));
  EXPECT_EQ(received, data);
}

TEST(SessionFaults, a_lost_credit_announcement_does_not_stop_the_sender) {
  Pipe pipe;
  pipe.connect();
  const auto data = pattern(100 * 128, 1);
  std::vector<std::byte> received(data.size());
  EXPECT_EQ(pipe.client->post_send({.data = data}, pipe.now), PostResult::kPosted);
  pipe.run_for(milliseconds(100));
  EXPECT_EQ(pipe.server->post_receive({.buffer = received}, pipe.now), PostResult::kPosted);
  int drops = 1;
  pipe.drops = [&](bool from_client, const PacketBytes& packet) {
    return !from_client && type_of(packet) == PacketType::kAck && drops-- > 0;
  };
  pipe.run_for(seconds(2));
  EXPECT_LT(drops, 1);
  EXPECT_EQ(received, data);
}

TEST(SessionFaults, time_in_which_this_end_slept_is_not_the_peers_silence) {
  Transfer transfer(128);
  transfer.drops = [](bool, const PacketBytes&) { return true; };
  transfer.send();
  transfer.run_for(seconds(1));
  transfer.now += seconds(100);  // Nobody called.
  transfer.drops = nullptr;
  transfer.run_for(seconds(5));
  EXPECT_TRUE(transfer.is_complete());
  EXPECT_EQ(transfer.server->error(), SessionError::kNone);
}

TEST(SessionFaults, a_close_delivers_everything_first) {
  Transfer transfer(50 * 128);
  transfer.send();
  transfer.client->close(transfer.now);
  EXPECT_EQ(transfer.client->post_send({}, transfer.now), PostResult::kEnded);
  transfer.run_for(milliseconds(500));
  EXPECT_EQ(transfer.received, transfer.sent);
  const auto events = events_of(*transfer.client);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, Kind::kSendDone);
  EXPECT_EQ(events[1].kind, Kind::kClosed);
  EXPECT_EQ(events_of(*transfer.server).back().kind, Kind::kPeerClosed);
  transfer.server->close(transfer.now);
  transfer.run_for(seconds(2));
  EXPECT_TRUE(transfer.client->is_finished());
  EXPECT_TRUE(transfer.server->is_finished());
}

TEST(SessionFaults, a_close_whose_last_acknowledgement_is_lost_ends_without_an_error) {
  for (const int lost_acks : {1, 3, 1000000}) {
    Transfer transfer(128);
    transfer.send();
    transfer.run_for(milliseconds(100));
    events_of(*transfer.client);
    int drops = lost_acks;
    transfer.drops = [&](bool from_client, const PacketBytes& packet) {
      return !from_client && type_of(packet) == PacketType::kAck && drops-- > 0;
    };
    transfer.client->close(transfer.now);
    transfer.run_for(seconds(10));
    EXPECT_LT(drops, lost_acks);
    const auto events = events_of(*transfer.client);
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].kind, Kind::kClosed);
    EXPECT_EQ(transfer.client->error(), SessionError::kNone);
  }
}

TEST(SessionFaults, a_receive_that_the_peers_close_leaves_empty_is_an_error) {
  Transfer transfer(128);
  transfer.client->close(transfer.now);
  transfer.run_for(milliseconds(100));
  const auto events = events_of(*transfer.server);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, Kind::kReceiveDone);
  EXPECT_EQ(events[0].error, SessionError::kPeerClosed);
  std::vector<std::byte> buffer(8);
  EXPECT_EQ(transfer.server->post_receive({.buffer = buffer}, transfer.now), PostResult::kEnded);
}

TEST(SessionFaults, cancelling_ends_all_requests_at_once_and_tells_the_peer) {
  Transfer transfer(100 * 128);
  transfer.send();
  transfer.server->cancel(transfer.now);
  EXPECT_EQ(events_of(*transfer.server).at(0).error, SessionError::kCancelled);
  transfer.run_for(milliseconds(100));
  EXPECT_EQ(transfer.client->error(), SessionError::kPeerClosed);
}

TEST(SessionFaults, a_dark_path_goes_to_quarantine_and_the_rest_carries_on) {
  Transfer transfer(100 * 128);
  transfer.drops = [](bool from_client, const PacketBytes& packet) {
    return from_client && packet[2] == std::byte{3};
  };
  transfer.send();
  transfer.run_for(seconds(2));
  EXPECT_EQ(transfer.received, transfer.sent);
}

TEST(SessionFaults, repeated_packets_of_either_end_do_not_pass_their_age_off_as_a_round_trip) {
  Pipe pipe;
  std::vector<PacketBytes> data;
  std::vector<PacketBytes> acks;
  pipe.drops = [&](bool from_client, const PacketBytes& packet) {
    if (type_of(packet) == PacketType::kData || type_of(packet) == PacketType::kAck) {
      (from_client ? data : acks).push_back(packet);
    }
    return false;
  };
  pipe.connect();
  const auto all_sampled = [&] {
    bool all = true;
    for (PathIndex path = 0; path < pipe.client->paths().count(); ++path) {
      all = all && pipe.client->paths().at(path).rtt.has_sample();
    }
    return all;
  };
  const auto sent = pattern(3000, 1);
  std::vector<std::byte> received(sent.size());
  for (int round = 0; round == 0 || !all_sampled(); ++round) {
    ASSERT_LT(round, 100);
    ASSERT_EQ(pipe.server->post_receive({.buffer = received}, pipe.now), PostResult::kPosted);
    ASSERT_EQ(pipe.client->post_send({.data = sent}, pipe.now), PostResult::kPosted);
    pipe.run_for(milliseconds(50));
    ASSERT_EQ(events_of(*pipe.client).size(), 1U);
    ASSERT_EQ(events_of(*pipe.server).size(), 1U);
  }
  const auto longest = [&] {
    Duration rtt{};
    for (PathIndex path = 0; path < pipe.client->paths().count(); ++path) {
      rtt = std::max(rtt, pipe.client->paths().at(path).rtt.smoothed());
    }
    return rtt;
  };
  const Duration before = longest();
  ASSERT_GT(before, Duration::zero());
  pipe.run_for(milliseconds(5000));
  for (const PacketBytes& ack : std::vector(acks)) {
    hand_over(*pipe.client, ack, pipe.now);
  }
  EXPECT_LE(longest(), before);
  const std::size_t answers = acks.size();
  for (const PacketBytes& packet : std::vector(data)) {
    hand_over(*pipe.server, packet, pipe.now);  // A duplicate is acknowledged, with its old time.
    pipe.exchange();
  }
  pipe.run_for(milliseconds(50));
  EXPECT_GT(acks.size(), answers);
  EXPECT_LE(longest(), before);
}

}  // namespace
}  // namespace harp::session_faults_test
