// What happens when the other end is gone, is somebody else, or does not keep to the protocol; and
// that a caller's memory is left alone afterwards.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/authenticated.hpp"

#include "transport/tcp_raw_peer.hpp"
#include "transport/tcp_test_support.hpp"

namespace lightcc::tcp_failure_test {
namespace {

using namespace tcp_test;  // NOLINT: the tests' own helpers

/// Drives until `result()` is an error, and returns that; Ok when it never fails.
template <typename Call>
Status drive_to_error(const std::vector<Transport*>& transports, Call result) {
  Status status;
  (void)drive(transports, [&] {
    status = result().status();
    return !status.ok();
  });
  return status;
}

void expect_failed(const Status& status, int rank, const std::string& part = "") {
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed) << status.message();
  EXPECT_EQ(status.rank(), rank) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST(TcpFailureTest, a_peer_destroyed_in_the_middle_of_a_message_fails_the_receive) {
  Pair pair;
  pair.open();
  const Bytes message = pattern(std::size_t{32} << 20, 1);
  Bytes into(message.size());
  (void)must(pair.send->isend(message));
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(), [&] { return pair.b->bytes_received() > 1'000'000; }));
  pair.send.reset();
  pair.a.reset();
  expect_failed(drive_to_error({pair.b.get()}, [&] { return pair.recv->test(posted); }), 0);
  expect_failed(pair.recv->irecv(into).status(), 0);
}

TEST(TcpFailureTest, a_fragment_stays_readable_when_the_peer_is_destroyed) {
  Pair pair;
  pair.open();
  const Bytes message = pattern(std::size_t{32} << 20, 1);
  (void)must(pair.send->isend(message));
  const RequestId posted = must(pair.recv->irecv_fragments(message.size()));
  std::optional<Fragment> held;
  ASSERT_TRUE(drive(pair.both(), [&] {
    held = must(pair.recv->next_fragment(posted));
    return held.has_value();
  }));
  pair.send.reset();
  pair.a.reset();
  const auto take = [&]() -> Result<bool> {
    if (held) {
      EXPECT_TRUE(std::equal(held->bytes.begin(),
                             held->bytes.end(),
                             message.begin() + static_cast<std::ptrdiff_t>(held->offset)));
      pair.recv->release(*held);
    }
    LIGHTCC_ASSIGN_OR_RETURN(held, pair.recv->next_fragment(posted));
    return held.has_value();
  };
  expect_failed(drive_to_error({pair.b.get()}, take), 0);
  expect_failed(pair.recv->test(posted).status(), 0);
}

TEST(TcpFailureTest, messages_sent_before_a_clean_close_arrive_and_the_next_receive_fails) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, 3 * kStripeBytes}) {
    for (const bool poll_in_between : {false, true}) {
      Pair pair(4);
      pair.open();
      const Bytes message = pattern(bytes, 2);
      const RequestId sent = must(pair.send->isend(message));
      ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.send->test(sent)); }));
      pair.send.reset();
      pair.a.reset();
      if (poll_in_between) {
        settle({pair.b.get()});
        EXPECT_FALSE(is_readable(*pair.b)) << "a close that nobody waits for must not burn CPU";
      }
      Bytes into(bytes);
      const RequestId posted = must(pair.recv->irecv(into));
      ASSERT_TRUE(drive({pair.b.get()}, [&] { return must(pair.recv->test(posted)); }));
      EXPECT_TRUE(into == message);
      const auto next = pair.recv->irecv(into);
      const Status failure =
          next.ok() ? drive_to_error({pair.b.get()}, [&] { return pair.recv->test(1); })
                    : next.status();
      expect_failed(failure, 0, "rank 0 closed the connection");
      EXPECT_TRUE(must(pair.recv->test(posted))) << "what arrived stays arrived";
    }
  }
}

TEST(TcpFailureTest, a_sender_learns_that_the_receiver_is_gone) {
  Pair pair;
  pair.open();
  const Bytes message = pattern(std::size_t{64} << 20, 3);
  const RequestId sent = must(pair.send->isend(message));
  settle(pair.both());
  pair.recv.reset();
  pair.b.reset();
  expect_failed(drive_to_error({pair.a.get()}, [&] { return pair.send->test(sent); }), 1);
}

TEST(TcpFailureTest, a_receivers_close_with_nothing_queued_is_told_by_the_next_send) {
  Pair pair;
  pair.open();
  const Bytes message = pattern(10, 4);
  const RequestId sent = must(pair.send->isend(message));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.send->test(sent)); }));
  settle(pair.both());
  pair.recv.reset();
  settle({pair.a.get()});
  EXPECT_TRUE(must(pair.send->test(sent))) << "what was sent stays sent";
  expect_failed(pair.send->isend(message).status(), 1);
}

TEST(TcpFailureTest, a_message_of_another_length_than_expected_names_both_lengths_and_the_rank) {
  for (const std::size_t sent_bytes : {std::size_t{0}, std::size_t{8}, std::size_t{1} << 20}) {
    Pair pair;
    pair.open();
    const Bytes message = pattern(sent_bytes, 5);
    (void)must(pair.send->isend(message));
    Bytes into(16);
    const RequestId posted = must(pair.recv->irecv(into));
    const Status status = drive_to_error(pair.both(), [&] { return pair.recv->test(posted); });
    expect_failed(status, 0, "rank 0");
    expect_failed(status, 0, std::to_string(sent_bytes) + " bytes");
    expect_failed(status, 0, "16 were expected");
  }
}

TEST(TcpFailureTest, cancel_ends_both_directions_and_frees_the_memory_at_once) {
  Pair pair;
  pair.open();
  auto message = std::make_unique<Bytes>(pattern(std::size_t{32} << 20, 6));
  auto into = std::make_unique<Bytes>(message->size());
  const RequestId sent = must(pair.send->isend(*message));
  const RequestId posted = must(pair.recv->irecv(*into));
  ASSERT_TRUE(drive(pair.both(), [&] { return pair.b->bytes_received() > 1'000'000; }));
  pair.recv->cancel();
  into.reset();  // AddressSanitizer watches from here on.
  EXPECT_EQ(pair.recv->test(posted).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(pair.recv->irecv({}).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(pair.recv->next_fragment(posted).status().code(), ErrorCode::kShutDown);
  expect_failed(drive_to_error(pair.both(), [&] { return pair.send->test(sent); }), 1);
  pair.send->cancel();
  message.reset();
  EXPECT_FALSE(pair.send->test(sent).ok());
  EXPECT_FALSE(pair.send->isend({}).ok());
  settle(pair.both());
}

TEST(TcpFailureTest, a_cancelled_send_fails_the_receiver_and_its_own_finished_requests) {
  Pair pair;
  pair.open();
  auto message = std::make_unique<Bytes>(pattern(std::size_t{32} << 20, 7));
  const RequestId small = must(pair.send->isend({}));
  (void)must(pair.send->isend(*message));
  Bytes into(message->size());
  (void)must(pair.recv->irecv({}));
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(), [&] { return pair.b->bytes_received() > 1'000'000; }));
  EXPECT_TRUE(must(pair.send->test(small)));
  pair.send->cancel();
  message.reset();
  EXPECT_EQ(pair.send->test(small).status().code(), ErrorCode::kShutDown);
  expect_failed(drive_to_error(pair.both(), [&] { return pair.recv->test(posted); }), 0);
}

TEST(TcpFailureTest, channels_may_outlive_their_transport) {
  Pair pair;
  pair.open();
  const Bytes message = pattern(1'000'000, 8);
  Bytes into(message.size());
  (void)must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(), [&] { return pair.send->isend(message).ok(); }));
  pair.a.reset();
  pair.b.reset();
  (void)pair.send->isend(message);
  (void)pair.recv->irecv(into);
  pair.recv.reset();
  pair.send.reset();
}

TEST(TcpFailureTest, connecting_to_nobody_ends_with_an_error_naming_the_rank) {
  Pair pair;
  const TransportHandle handle = pair.b->handle();
  pair.b.reset();
  auto send = must(pair.a->connect(handle, pair.id));
  const RequestId sent = must(send->isend({}));
  expect_failed(drive_to_error({pair.a.get()}, [&] { return send->test(sent); }), 1);
}

TEST(TcpFailureTest, a_peer_that_accepts_but_says_nothing_ends_with_a_timeout) {
  ManualClock clock;
  TcpTransportOptions options = make_options();
  options.clock = &clock;
  Pair pair(options, make_options());
  pair.send = must(pair.a->connect(pair.b->handle(), pair.id));  // b is never polled.
  const RequestId sent = must(pair.send->isend({}));
  settle({pair.a.get()});
  EXPECT_FALSE(must(pair.send->test(sent)));
  clock.advance(options.connect_timeout);
  bool moved = false;
  expect_polls(*pair.a, moved);
  const Status status = pair.send->test(sent).status();
  EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.message();
  EXPECT_EQ(status.rank(), 1);
}

TEST(TcpFailureTest, nothing_is_sent_before_all_sockets_stand) {
  // The listener alone, so that the test says when each handshake ends.
  const auto listener = must(AuthListener::listen(
      SocketAddress::resolve("127.0.0.1:0").value(), kSecret, AuthListenerOptions{}));
  const auto sender = make_transport(make_options(2));
  const ChannelId id{0, 1, 0, 0};
  const auto channel =
      must(sender->connect(must(encode_tcp_handle({kWorld, listener->address()})), id));
  const Bytes message = pattern(40, 1);
  const RequestId sent = must(channel->isend(message));
  const auto admit_one = [&] {
    std::optional<AuthenticatedSocket> admitted;
    const auto deadline = std::chrono::steady_clock::now() + kHang;
    while (!admitted.has_value() && std::chrono::steady_clock::now() < deadline) {
      bool moved = false;
      expect_polls(*sender, moved);
      admitted = must(listener->poll());
    }
    return admitted;
  };
  const auto is_empty = [](const UniqueFd& fd) {
    std::byte byte{};
    return ::recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
  };
  const auto first = admit_one();
  ASSERT_TRUE(first.has_value());
  settle({sender.get()});
  EXPECT_TRUE(is_empty(first->fd));
  EXPECT_FALSE(must(channel->test(sent)));
  const auto second = admit_one();
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(drive({sender.get()}, [&] { return must(channel->test(sent)); }));
  EXPECT_NE(is_empty(first->fd), is_empty(second->fd));
}

TEST(TcpFailureTest, a_receiver_that_takes_nothing_ends_with_a_timeout) {
  TcpTransportOptions options = make_options();
  options.user_timeout = std::chrono::seconds(1);
  Pair pair(options, make_options());
  pair.open();
  const Bytes message = pattern(std::size_t{64} << 20, 8);
  const RequestId sent = must(pair.send->isend(message));
  const Status status = drive_to_error(pair.both(), [&] { return pair.send->test(sent); });
  EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.message();
  EXPECT_EQ(status.rank(), 1);
}

TEST(TcpFailureTest, a_handle_of_another_world_or_of_no_meaning_is_refused) {
  Pair pair;
  TcpTransportOptions other = make_options();
  other.world_id = kWorld + 1;
  auto stranger = make_transport(other);
  EXPECT_EQ(pair.a->connect(stranger->handle(), pair.id).status().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(pair.a->connect({}, pair.id).status().code(), ErrorCode::kInvalidArgument);
}

/// Opens the channel, which strangers have tried to disturb, and passes one message.
void expect_works(Pair& pair) {
  pair.open();
  const Bytes message = pattern(10'000, 9);
  Bytes into(message.size());
  (void)must(pair.send->isend(message));
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(posted)); }));
  EXPECT_TRUE(into == message);
}

TEST(TcpFailureTest, hellos_of_other_worlds_and_malformed_hellos_are_closed) {
  Pair pair;
  ChannelHello other_world = make_hello(pair.id);
  other_world.world_id = kWorld + 1;
  for (const Bytes& hello : {encode_tcp_hello(other_world), Bytes(), pattern(44, 1)}) {
    RawPeer stranger(*pair.b, hello);
    ASSERT_TRUE(stranger.status().ok()) << stranger.status().message();
    EXPECT_TRUE(stranger.is_closed_by(*pair.b));
  }
  expect_works(pair);
}

TEST(TcpFailureTest, garbage_and_port_scans_and_wrong_secrets_do_not_disturb) {
  Pair pair;
  const SocketAddress address = address_of(*pair.b);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 20; ++i) {
    UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd.get(), address.data(), address.length()), 0);
    const Bytes garbage = pattern(1000, static_cast<std::uint64_t>(i));
    if (i % 3 == 0) {
      (void)::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    }
    if (i % 3 != 1) {
      strangers.push_back(std::move(fd));  // The others connect and leave.
    }
  }
  const RawPeer liar(*pair.b, encode_tcp_hello(make_hello(pair.id)), "another secret");
  EXPECT_EQ(liar.status().code(), ErrorCode::kPeerFailed) << liar.status().message();
  expect_works(pair);
}

TEST(TcpFailureTest, second_sockets_with_one_index_and_older_attempts_are_closed) {
  Pair pair;
  // Parked: the newest attempt stays.
  RawPeer older(*pair.b, encode_tcp_hello(make_hello(pair.id, 4)));
  RawPeer newer(*pair.b, encode_tcp_hello(make_hello(pair.id, 5)));
  EXPECT_TRUE(older.is_closed_by(*pair.b));
  RawPeer stale(*pair.b, encode_tcp_hello(make_hello(pair.id, 3)));
  EXPECT_TRUE(stale.is_closed_by(*pair.b));
  RawPeer twin(*pair.b, encode_tcp_hello(make_hello(pair.id, 5)));
  EXPECT_TRUE(twin.is_closed_by(*pair.b));
  // Attached: the same rules.
  pair.recv = must(pair.b->accept(pair.id));
  RawPeer late_twin(*pair.b, encode_tcp_hello(make_hello(pair.id, 5)));
  EXPECT_TRUE(late_twin.is_closed_by(*pair.b));
  RawPeer late_stale(*pair.b, encode_tcp_hello(make_hello(pair.id, 2)));
  EXPECT_TRUE(late_stale.is_closed_by(*pair.b));
  const RequestId posted = must(pair.recv->irecv({}));
  newer.send_stripe({0, 0, 0, 0}, 0);
  ASSERT_TRUE(drive({pair.b.get()}, [&] { return must(pair.recv->test(posted)); }));
}

TEST(TcpFailureTest, a_replaced_sender_waits_for_the_next_accept) {
  Pair pair;
  pair.open();
  Bytes into(10);
  const RequestId first = must(pair.recv->irecv(into));
  const Bytes message = pattern(10, 10);
  (void)must(pair.send->isend(message));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(first)); }));
  pair.send.reset();
  pair.send = must(pair.a->connect(pair.b->handle(), pair.id));
  const RequestId sent = must(pair.send->isend(message));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.send->test(sent)); }));
  pair.recv.reset();
  pair.recv = must(pair.b->accept(pair.id));
  const RequestId again = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(again)); }));
}

TEST(TcpFailureTest, parked_sockets_are_bounded_in_number_and_age) {
  ManualClock clock;
  TcpTransportOptions options = make_options(1);
  options.clock = &clock;
  options.max_parked = 2;
  Pair pair(make_options(1), options);
  RawPeer first(*pair.b, encode_tcp_hello(make_hello({0, 1, 0, 1})));
  RawPeer second(*pair.b, encode_tcp_hello(make_hello({0, 1, 0, 2})));
  RawPeer third(*pair.b, encode_tcp_hello(make_hello({0, 1, 0, 3})));
  EXPECT_TRUE(third.is_closed_by(*pair.b));
  clock.advance(options.park_timeout);
  EXPECT_TRUE(first.is_closed_by(*pair.b));
  EXPECT_TRUE(second.is_closed_by(*pair.b));
  expect_works(pair);
}

TEST(TcpFailureTest, an_authenticated_peer_that_breaks_the_protocol_fails_its_channel_only) {
  struct Case {
    const char* what;
    std::vector<StripeHeader> stripes;
  };
  constexpr std::uint32_t kS = kStripeBytes;
  const std::vector<Case> cases = {
      {"a stripe off the grid", {{0, 64, 4 * kS, kS}}},
      {"a stripe longer than stripes are", {{0, 0, 4 * kS, 2 * kS}}},
      {"the same stripe twice", {{0, 3 * kS, 3 * kS + 9, 9}, {0, 3 * kS, 3 * kS + 9, 9}}},
      {"a message that was complete", {{0, 0, 0, 0}, {0, 0, 0, 0}}},
      {"another length in a later stripe", {{0, 3 * kS, 3 * kS + 9, 9}, {0, kS, kS + 9, 9}}},
  };
  for (const Case& test : cases) {
    for (const bool fragments : {false, true}) {
      Pair pair;
      RawPeer peer(*pair.b, encode_tcp_hello(make_hello(pair.id)));
      pair.recv = must(pair.b->accept(pair.id));
      Bytes into(static_cast<std::size_t>(test.stripes.front().total));
      const RequestId posted =
          must(fragments ? pair.recv->irecv_fragments(into.size()) : pair.recv->irecv(into));
      const RequestId behind = must(pair.recv->irecv({}));
      for (const StripeHeader& stripe : test.stripes) {
        peer.send_stripe(stripe, stripe.length < kS ? stripe.length : 0);
      }
      const auto take = [&]() -> Result<bool> {
        if (fragments) {
          LIGHTCC_ASSIGN_OR_RETURN(const auto piece, pair.recv->next_fragment(posted));
          if (piece) {
            pair.recv->release(*piece);
          }
        }
        return pair.recv->test(behind);
      };
      SCOPED_TRACE(test.what);
      expect_failed(drive_to_error({pair.b.get()}, take), 0, "rank 0 sent");
      pair.recv.reset();
      expect_works(pair);
    }
  }
}

TEST(TcpFailureTest, a_stream_that_ends_inside_a_header_or_a_payload_fails) {
  for (const std::size_t bytes : {std::size_t{5}, kStripeHeaderBytes + 10}) {
    Pair pair;
    RawPeer peer(*pair.b, encode_tcp_hello(make_hello(pair.id)));
    pair.recv = must(pair.b->accept(pair.id));
    Bytes into(100);
    const RequestId posted = must(pair.recv->irecv(into));
    StripeHeaderBytes header;
    encode_stripe_header({0, 0, 100, 100}, header);
    Bytes stream(header.begin(), header.end());
    stream.resize(kStripeHeaderBytes + 100);
    peer.send(std::span(stream).first(bytes));
    peer.close();
    expect_failed(drive_to_error({pair.b.get()}, [&] { return pair.recv->test(posted); }),
                  0,
                  "in the middle of a message");
  }
}

TEST(TcpFailureTest, releasing_something_else_than_the_fragment_is_an_error_not_a_crash) {
  Pair pair;
  pair.open();
  const Bytes message = pattern(1000, 11);
  (void)must(pair.send->isend(message));
  const RequestId posted = must(pair.recv->irecv_fragments(message.size()));
  std::optional<Fragment> held;
  ASSERT_TRUE(drive(pair.both(), [&] {
    held = must(pair.recv->next_fragment(posted));
    return held.has_value();
  }));
  pair.recv->release(Fragment{0, message});
  EXPECT_EQ(pair.recv->test(posted).status().code(), ErrorCode::kInvalidArgument);
  pair.recv->release(*held);
}

}  // namespace
}  // namespace lightcc::tcp_failure_test
