// What transport.hpp promises, asked of every transport: loopback, TCP, and the NCCL net plugins
// that the build makes. Every size around the seams, both kinds of receive, both orders of connect
// and accept, many channels, threads, backpressure, counters, idleness.
//
// Loopback is a tool for tests and promises less; it is not asked what NetworkContractTest asks.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/transport/plugin/plugin_frame.hpp"
#include "lightcc/transport/tcp/tcp_frame.hpp"

#include "doubles/fault_plan.hpp"
#include "doubles/loopback_transport.hpp"
#include "doubles/threads.hpp"
#include "transport/plugin_test_support.hpp"
#include "transport/tcp_test_support.hpp"

namespace lightcc::transport_contract_test {
namespace {

using namespace transport_test;  // NOLINT: the tests' own helpers

/// Makes the transport of a rank of one world; `connections`: per channel that it sends on.
using MakeTransport =
    std::function<std::unique_ptr<Transport>(std::uint32_t rank, int connections)>;

/// A transport, and where the contract leaves it a choice.
struct Subject {
  std::string name;
  std::function<MakeTransport()> new_world;
  int connections = 1;          ///< Per channel, where a test does not care.
  std::size_t piece_bytes = 0;  ///< Messages are cut there.
  std::uint64_t (*wire_bytes)(std::uint64_t message_bytes) = nullptr;
  /// A message of 300 kB is sent, and done, when nobody has posted a receive.
  bool buffers = true;
  /// wait_fd() is a timer, which also runs while a send or a receive waits for the peer.
  bool has_timer = false;
};

std::uint64_t payload_alone(std::uint64_t message_bytes) {
  return message_bytes;
}

Subject loopback() {
  constexpr std::size_t kCapacity = std::size_t{1} << 20;
  const auto new_world = [] {
    return [hub = std::make_shared<LoopbackHub>(FaultPlan().capacity(kCapacity))](
               std::uint32_t rank, int) { return hub->make_transport(rank); };
  };
  return {
      .name = "loopback",
      .new_world = new_world,
      .piece_bytes = kCapacity,
      .wire_bytes = payload_alone,
  };
}

std::vector<Subject> networks() {
  const auto new_tcp_world = [] {
    return [](std::uint32_t, int connections) {
      return tcp_test::make_transport(tcp_test::make_options(connections));
    };
  };
  std::vector<Subject> out{{
      .name = "tcp",
      .new_world = new_tcp_world,
      .connections = 2,
      .piece_bytes = kStripeBytes,
      .wire_bytes = message_wire_bytes,
  }};
  for (const plugin_test::PluginUnderTest& plugin : plugin_test::kPlugins) {
    const auto new_world = [path = plugin.path] {
      return [path](std::uint32_t, int connections) {
        return plugin_test::make_transport(plugin_test::make_options(path, connections));
      };
    };
    out.push_back({
        .name = plugin.name,
        .new_world = new_world,
        .piece_bytes = kPieceBytes,
        .wire_bytes = payload_alone,
        .buffers = false,
        .has_timer = true,
    });
  }
  return out;
}

std::vector<Subject> all_transports() {
  std::vector<Subject> out = networks();
  out.push_back(loopback());
  return out;
}

TransportPair make_pair_of(const Subject& subject, int connections_of_a, int connections_of_b) {
  const MakeTransport make = subject.new_world();
  return {make(0, connections_of_a), make(1, connections_of_b)};
}

enum class Kind { kWhole, kFragments, kMixed };

bool by_fragments(Kind kind, std::size_t i) {
  return kind == Kind::kFragments || (kind == Kind::kMixed && i % 2 == 1);
}

/// The receiving side of a list of messages, posted all at once or one after the other.
class Receiver {
 public:
  Receiver(RecvChannel& channel, const std::vector<std::size_t>& sizes, Kind kind)
      : channel_(channel), kind_(kind) {
    for (const std::size_t bytes : sizes) {
      into_.emplace_back(bytes);
    }
  }
  void post_next() {
    const std::size_t i = requests_.size();
    requests_.push_back(must(by_fragments(kind_, i) ? channel_.irecv_fragments(into_[i].size())
                                                    : channel_.irecv(into_[i])));
    EXPECT_EQ(requests_.back(), i);
  }
  void post_all() {
    while (requests_.size() < into_.size()) {
      post_next();
    }
  }
  /// Takes what has arrived; true when everything has. Posts lazily if post_all() was not called.
  bool advance() {
    while (done_ < into_.size()) {
      if (done_ == requests_.size()) {
        post_next();
      }
      const bool complete = by_fragments(kind_, done_)
                                ? take_fragments(channel_, requests_[done_], into_[done_])
                                : must(channel_.test(requests_[done_]));
      if (!complete) {
        return false;
      }
      ++done_;
    }
    return true;
  }
  const std::vector<Bytes>& received() const { return into_; }

 private:
  RecvChannel& channel_;
  Kind kind_;
  std::vector<Bytes> into_;
  std::vector<RequestId> requests_;
  std::size_t done_ = 0;
};

class MessagesContractTest : public ::testing::TestWithParam<std::tuple<Subject, int, Kind, bool>> {
};

TEST_P(MessagesContractTest, every_size_around_the_seams_arrives_intact_and_in_order) {
  const auto& [subject, connections, kind, post_first] = GetParam();
  TransportPair pair = make_pair_of(subject, connections, connections);
  pair.open();
  const std::vector<std::size_t> sizes = seam_sizes(subject.piece_bytes);
  const std::vector<Bytes> messages = make_messages(sizes);
  Receiver receiver(*pair.recv, sizes, kind);
  if (post_first) {
    receiver.post_all();
  }
  RequestId last = 0;
  for (const Bytes& message : messages) {
    last = must(pair.send->isend(message));
  }
  EXPECT_EQ(last, messages.size() - 1);
  ASSERT_TRUE(drive(pair.both(), [&] { return receiver.advance(); }));
  EXPECT_TRUE(receiver.received() == messages);
  if (subject.buffers) {
    EXPECT_TRUE(must(pair.send->test(last)));
  }
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.send->test(last)); }));

  std::uint64_t wire_bytes = 0;
  for (const Bytes& message : messages) {
    wire_bytes += subject.wire_bytes(message.size());
  }
  EXPECT_EQ(pair.a->bytes_sent(), wire_bytes);
  EXPECT_EQ(pair.b->bytes_received(), wire_bytes);
  EXPECT_EQ(pair.b->bytes_sent(), 0U);
}

std::string params_name(const ::testing::TestParamInfo<MessagesContractTest::ParamType>& info) {
  const char* const kNames[] = {"whole", "fragments", "mixed"};
  return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param)) +
         "_connections_" + kNames[static_cast<int>(std::get<2>(info.param))] +
         (std::get<3>(info.param) ? "_posted_first" : "_posted_late");
}

INSTANTIATE_TEST_SUITE_P(
    networks,
    MessagesContractTest,
    ::testing::Combine(::testing::ValuesIn(networks()),
                       ::testing::Values(1, 2, 3, 5, 16),
                       ::testing::Values(Kind::kWhole, Kind::kFragments, Kind::kMixed),
                       ::testing::Bool()),
    params_name);
INSTANTIATE_TEST_SUITE_P(
    loopback,
    MessagesContractTest,
    ::testing::Combine(::testing::Values(loopback()),
                       ::testing::Values(1),
                       ::testing::Values(Kind::kWhole, Kind::kFragments, Kind::kMixed),
                       ::testing::Bool()),
    params_name);

class TransportContractTest : public ::testing::TestWithParam<Subject> {
 protected:
  static TransportPair make_pair() { return make_pair(GetParam().connections); }
  static TransportPair make_pair(int connections) {
    return make_pair_of(GetParam(), connections, connections);
  }
  /// Lets what can happen without anybody's help happen.
  static void let_be(const TransportPair& pair) {
    if (GetParam().has_timer) {
      poll_often(pair.both(), 1000);
    } else {
      settle(pair.both());
    }
  }
};
class NetworkContractTest : public TransportContractTest {};

std::string subject_name(const ::testing::TestParamInfo<Subject>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(all,
                         TransportContractTest,
                         ::testing::ValuesIn(all_transports()),
                         subject_name);
INSTANTIATE_TEST_SUITE_P(all, NetworkContractTest, ::testing::ValuesIn(networks()), subject_name);

TEST_P(TransportContractTest, accept_may_come_long_after_the_messages) {
  TransportPair pair = make_pair();
  pair.send = must(pair.a->connect(pair.b->handle(), pair.id));
  const Bytes message = pattern(300'000, 1);
  const RequestId sent = must(pair.send->isend(message));
  if (GetParam().buffers) {
    ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.send->test(sent)); }));
  }
  let_be(pair);
  EXPECT_FALSE(is_readable(*pair.b)) << "connections that wait for accept() must not burn CPU";
  pair.recv = must(pair.b->accept(pair.id));
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(),
                    [&] { return must(pair.recv->test(posted)) && must(pair.send->test(sent)); }));
  EXPECT_TRUE(into == message);
}

TEST_P(TransportContractTest, accept_may_come_long_before_connect) {
  TransportPair pair = make_pair();
  pair.recv = must(pair.b->accept(pair.id));
  Bytes into(1000);
  const RequestId posted = must(pair.recv->irecv(into));
  for (int i = 0; i < 200; ++i) {
    bool moved = false;
    expect_polls(*pair.b, moved);
    EXPECT_FALSE(moved);
  }
  if (!GetParam().has_timer) {
    settle(pair.both());
    EXPECT_FALSE(is_readable(*pair.b));
  }
  pair.send = must(pair.a->connect(pair.b->handle(), pair.id));
  const Bytes message = pattern(1000, 2);
  const RequestId sent = must(pair.send->isend(message));
  ASSERT_TRUE(drive(pair.both(),
                    [&] { return must(pair.recv->test(posted)) && must(pair.send->test(sent)); }));
  EXPECT_TRUE(into == message);
}

TEST_P(NetworkContractTest, a_channel_can_be_accepted_once_until_it_is_destroyed) {
  TransportPair pair = make_pair();
  pair.open();
  EXPECT_EQ(pair.b->accept(pair.id).status().code(), ErrorCode::kInvalidArgument);
  pair.recv.reset();
  EXPECT_TRUE(pair.b->accept(pair.id).ok());
}

TEST_P(TransportContractTest, a_channel_that_was_closed_on_both_ends_can_be_opened_again) {
  TransportPair pair = make_pair();
  for (int round = 0; round < 20; ++round) {
    pair.open();
    const Bytes message = pattern(5000, static_cast<std::uint64_t>(round));
    const RequestId sent = must(pair.send->isend(message));
    Bytes into(message.size());
    const RequestId posted = must(pair.recv->irecv(into));
    ASSERT_TRUE(drive(pair.both(), [&] {
      return must(pair.recv->test(posted)) && must(pair.send->test(sent));
    })) << round;
    EXPECT_TRUE(into == message);
    pair.recv.reset();
    pair.send.reset();
  }
}

TEST_P(NetworkContractTest, ends_may_have_different_numbers_of_connections) {
  TransportPair pair = make_pair_of(GetParam(), 7, 1);
  pair.open();
  const Bytes message = pattern(3'000'000, 3);
  const RequestId sent = must(pair.send->isend(message));
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(),
                    [&] { return must(pair.recv->test(posted)) && must(pair.send->test(sent)); }));
  EXPECT_TRUE(into == message);
}

TEST_P(TransportContractTest, many_channels_between_three_ranks_do_not_mix_their_messages) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::uint32_t kLanes = 8;
  const MakeTransport make = GetParam().new_world();
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Transport*> all;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    transports.push_back(make(rank, GetParam().connections));
    all.push_back(transports.back().get());
  }
  struct Flow {
    std::unique_ptr<SendChannel> send;
    std::unique_ptr<RecvChannel> recv;
    Bytes message;
    Bytes into;
    RequestId posted = 0;
    RequestId sent = 0;
  };
  std::vector<Flow> flows;
  for (std::uint32_t source = 0; source < kRanks; ++source) {
    for (std::uint32_t destination = 0; destination < kRanks; ++destination) {
      for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
        const ChannelId id{source, destination, lane % 2, lane};  // To itself, too.
        Flow flow;
        flow.send = must(all[source]->connect(all[destination]->handle(), id));
        flow.recv = must(all[destination]->accept(id));
        flow.message = pattern(200'000 + 64 * flows.size(), flows.size());
        flow.into.resize(flow.message.size());
        flow.posted = must(flow.recv->irecv(flow.into));
        flows.push_back(std::move(flow));
        flows.back().sent = must(flows.back().send->isend(flows.back().message));
      }
    }
  }
  ASSERT_TRUE(drive(all, [&] {
    return std::ranges::all_of(flows, [](Flow& flow) {
      return must(flow.recv->test(flow.posted)) && must(flow.send->test(flow.sent));
    });
  }));
  for (const Flow& flow : flows) {
    EXPECT_TRUE(flow.into == flow.message);
  }
}

TEST_P(TransportContractTest, ranks_in_threads_pass_messages_around_a_ring) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::size_t kRounds = 40;
  const MakeTransport make = GetParam().new_world();
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    transports.push_back(make(rank, 3));
  }
  const auto run_rank = [&](std::uint32_t rank) {
    Transport& transport = *transports[rank];
    const std::uint32_t next = (rank + 1) % kRanks;
    const std::uint32_t previous = (rank + kRanks - 1) % kRanks;
    auto send = must(transport.connect(transports[next]->handle(), {rank, next, 0, 0}));
    auto recv = must(transport.accept({previous, rank, 0, 0}));
    for (std::size_t round = 0; round < kRounds; ++round) {
      const std::size_t bytes = round * 20'011;
      const Bytes message = pattern(bytes, rank * 1000 + round);
      Bytes into(bytes);
      const RequestId sent = must(send->isend(message));
      const RequestId posted =
          must(round % 2 == 0 ? recv->irecv(into) : recv->irecv_fragments(bytes));
      const bool done = drive({&transport}, [&] {
        const bool arrived =
            round % 2 == 0 ? must(recv->test(posted)) : take_fragments(*recv, posted, into);
        return arrived && must(send->test(sent));
      });
      EXPECT_TRUE(done) << "rank " << rank << " round " << round;
      EXPECT_TRUE(into == pattern(bytes, previous * 1000 + round));
      if (!done) {
        return;
      }
    }
  };
  run_on_threads(kRanks, run_rank);
}

TEST_P(TransportContractTest, a_message_without_a_receive_waits_and_costs_nothing) {
  TransportPair pair = make_pair();
  pair.open();
  const Bytes message = pattern(std::size_t{64} << 20, 5);
  const RequestId sent = must(pair.send->isend(message));
  let_be(pair);
  EXPECT_FALSE(must(pair.send->test(sent))) << "64 MiB cannot all be in the network";
  const auto connections = static_cast<std::uint64_t>(GetParam().connections);
  EXPECT_LE(pair.b->bytes_received(), connections * GetParam().wire_bytes(0))
      << "nothing is buffered here";
  if (!GetParam().has_timer) {
    EXPECT_FALSE(is_readable(*pair.a));
  }
  EXPECT_FALSE(is_readable(*pair.b));
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(),
                    [&] { return must(pair.recv->test(posted)) && must(pair.send->test(sent)); }));
  EXPECT_TRUE(into == message);
}

TEST_P(TransportContractTest, an_idle_pair_is_quiet_after_traffic) {
  TransportPair pair = make_pair(2);
  pair.open();
  const Bytes message = pattern(1'000'000, 6);
  Bytes into(message.size());
  for (int round = 0; round < 3; ++round) {
    const RequestId posted = must(pair.recv->irecv(into));
    const RequestId sent = must(pair.send->isend(message));
    ASSERT_TRUE(drive(
        pair.both(), [&] { return must(pair.recv->test(posted)) && must(pair.send->test(sent)); }));
  }
  settle(pair.both());
  EXPECT_FALSE(is_readable(*pair.a));
  EXPECT_FALSE(is_readable(*pair.b));
}

TEST_P(NetworkContractTest, a_later_message_arrives_while_a_fragment_of_an_earlier_one_is_held) {
  TransportPair pair = make_pair(4);
  pair.open();
  const Bytes first = pattern(GetParam().piece_bytes - 64, 7);  // One piece.
  const Bytes second = pattern(GetParam().piece_bytes * 2, 8);
  Bytes into_first(first.size());
  Bytes into_second(second.size());
  const RequestId fragments = must(pair.recv->irecv_fragments(first.size()));
  const RequestId whole = must(pair.recv->irecv(into_second));
  (void)must(pair.send->isend(first));
  const RequestId sent = must(pair.send->isend(second));
  std::optional<Fragment> held;
  ASSERT_TRUE(drive(pair.both(), [&] {
    held = must(pair.recv->next_fragment(fragments));
    return held.has_value();
  }));
  EXPECT_EQ(pair.recv->next_fragment(fragments).status().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(whole)); }));
  EXPECT_TRUE(into_second == second);
  EXPECT_FALSE(must(pair.recv->test(fragments)));
  std::ranges::copy(held->bytes, into_first.begin() + static_cast<std::ptrdiff_t>(held->offset));
  pair.recv->release(*held);
  ASSERT_TRUE(drive(pair.both(), [&] {
    return take_fragments(*pair.recv, fragments, into_first) && must(pair.send->test(sent));
  }));
  EXPECT_TRUE(into_first == first);
}

TEST_P(TransportContractTest, a_request_that_was_never_made_is_the_callers_fault) {
  TransportPair pair = make_pair();
  pair.open();
  Bytes into(8);
  (void)must(pair.recv->irecv(into));
  EXPECT_EQ(pair.recv->test(99).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pair.send->test(0).status().code(), ErrorCode::kInvalidArgument);
}

TEST_P(TransportContractTest, every_call_of_a_cancelled_channel_fails) {
  TransportPair pair = make_pair();
  pair.open();
  const Bytes message = pattern(1000, 12);
  Bytes into(message.size());
  const RequestId sent = must(pair.send->isend(message));
  const RequestId received = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(
      pair.both(), [&] { return must(pair.send->test(sent)) && must(pair.recv->test(received)); }));
  pair.send->cancel();
  pair.recv->cancel();
  EXPECT_EQ(pair.send->test(sent).status().code(), ErrorCode::kShutDown) << "also of what was done";
  EXPECT_EQ(pair.recv->test(received).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(pair.send->isend(message).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(pair.recv->irecv(into).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(pair.recv->irecv_fragments(into.size()).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(pair.recv->next_fragment(received).status().code(), ErrorCode::kShutDown);
}

TEST_P(NetworkContractTest, fragments_of_an_ordinary_receive_are_the_callers_fault) {
  TransportPair pair = make_pair();
  pair.open();
  Bytes into(8);
  const RequestId whole = must(pair.recv->irecv(into));
  EXPECT_EQ(pair.recv->next_fragment(whole).status().code(), ErrorCode::kInvalidArgument);
}

TEST_P(TransportContractTest, what_was_sent_before_a_close_arrives_after_it) {
  TransportPair pair = make_pair();
  pair.open();
  const Bytes first = pattern(1000, 12);
  const Bytes second = pattern(50'000, 13);
  Bytes into_first(first.size());
  const RequestId posted_first = must(pair.recv->irecv(into_first));
  (void)must(pair.send->isend(first));
  const RequestId sent = must(pair.send->isend(second));
  ASSERT_TRUE(drive(pair.both(), [&] {
    return must(pair.recv->test(posted_first)) && must(pair.send->test(sent));
  }));
  pair.send.reset();
  pair.a.reset();
  Bytes into_second(second.size());
  const RequestId posted_second = must(pair.recv->irecv(into_second));
  ASSERT_TRUE(drive({pair.b.get()}, [&] { return must(pair.recv->test(posted_second)); }));
  EXPECT_TRUE(into_second == second);
}

}  // namespace
}  // namespace lightcc::transport_contract_test
