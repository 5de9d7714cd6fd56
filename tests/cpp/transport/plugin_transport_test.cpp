// Messages over NCCL net plugins (the reference plugin over TCP, and HARP): every size around the
// seams, both kinds of receive, both orders of connect and accept, many channels, big messages,
// backpressure, counters, idleness.
#include "lightcc/transport/plugin/plugin_transport.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/transport/plugin/plugin_frame.hpp"

#include "transport/plugin_test_support.hpp"

namespace lightcc {
namespace {

using namespace plugin_test;  // NOLINT: the tests' own helpers

enum class Kind { kWhole, kFragments, kMixed };

bool by_fragments(Kind kind, std::size_t i) {
  return kind == Kind::kFragments || (kind == Kind::kMixed && i % 2 == 1);
}

const std::vector<std::size_t>& seam_sizes() {
  static const std::vector<std::size_t> kSizes = {0,
                                                  1,
                                                  63,
                                                  64,
                                                  65,
                                                  kPieceBytes - 1,
                                                  0,
                                                  kPieceBytes,
                                                  kPieceBytes + 1,
                                                  8 * kPieceBytes,
                                                  (std::size_t{5} << 20) + 7,
                                                  0};
  return kSizes;
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

std::vector<Bytes> make_messages(const std::vector<std::size_t>& sizes) {
  std::vector<Bytes> out;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    out.push_back(pattern(sizes[i], i));
  }
  return out;
}

class PluginMessagesTest
    : public ::testing::TestWithParam<std::tuple<PluginUnderTest, int, Kind, bool>> {};

TEST_P(PluginMessagesTest, every_size_around_the_seams_arrives_intact_and_in_order) {
  const auto [plugin, connections, kind, post_first] = GetParam();
  Pair pair(plugin.path, connections);
  pair.open();
  const std::vector<Bytes> messages = make_messages(seam_sizes());
  Receiver receiver(*pair.recv, seam_sizes(), kind);
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
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.send->test(last)); }));

  std::uint64_t bytes = 0;
  for (const Bytes& message : messages) {
    bytes += message.size();
  }
  EXPECT_EQ(pair.a->bytes_sent(), bytes);
  EXPECT_EQ(pair.b->bytes_received(), bytes);
  EXPECT_EQ(pair.b->bytes_sent(), 0U);
}

std::string params_name(const ::testing::TestParamInfo<PluginMessagesTest::ParamType>& info) {
  const char* const kNames[] = {"whole", "fragments", "mixed"};
  return std::string(std::get<0>(info.param).name) + "_" + std::to_string(std::get<1>(info.param)) +
         "_connections_" + kNames[static_cast<int>(std::get<2>(info.param))] +
         (std::get<3>(info.param) ? "_posted_first" : "_posted_late");
}

INSTANTIATE_TEST_SUITE_P(
    all,
    PluginMessagesTest,
    ::testing::Combine(::testing::ValuesIn(kPlugins),
                       ::testing::Values(1, 3, 16),
                       ::testing::Values(Kind::kWhole, Kind::kFragments, Kind::kMixed),
                       ::testing::Bool()),
    params_name);

class PluginTransportTest : public ::testing::TestWithParam<PluginUnderTest> {
 protected:
  static std::string path() { return GetParam().path; }
};
INSTANTIATE_TEST_SUITE_P(all, PluginTransportTest, ::testing::ValuesIn(kPlugins), plugin_name);

TEST_P(PluginTransportTest, accept_may_come_long_after_connect) {
  Pair pair(path());
  pair.send = must(pair.a->connect(pair.b->handle(), pair.id));
  const Bytes message = pattern(300'000, 1);
  const RequestId sent = must(pair.send->isend(message));
  for (int i = 0; i < 200; ++i) {
    bool moved = false;
    expect_polls(*pair.a, moved);
    expect_polls(*pair.b, moved);
  }
  EXPECT_FALSE(is_readable(*pair.b)) << "connections that wait for accept() must not burn CPU";
  pair.recv = must(pair.b->accept(pair.id));
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(),
                    [&] { return must(pair.recv->test(posted)) && must(pair.send->test(sent)); }));
  EXPECT_TRUE(into == message);
}

TEST_P(PluginTransportTest, accept_may_come_long_before_connect) {
  Pair pair(path());
  pair.recv = must(pair.b->accept(pair.id));
  Bytes into(1000);
  const RequestId posted = must(pair.recv->irecv(into));
  for (int i = 0; i < 200; ++i) {
    bool moved = false;
    expect_polls(*pair.b, moved);
    EXPECT_FALSE(moved);
  }
  pair.send = must(pair.a->connect(pair.b->handle(), pair.id));
  const Bytes message = pattern(1000, 2);
  const RequestId sent = must(pair.send->isend(message));
  ASSERT_TRUE(drive(pair.both(),
                    [&] { return must(pair.recv->test(posted)) && must(pair.send->test(sent)); }));
  EXPECT_TRUE(into == message);
}

TEST_P(PluginTransportTest, a_channel_can_be_accepted_once_until_it_is_destroyed) {
  Pair pair(path());
  pair.open();
  EXPECT_EQ(pair.b->accept(pair.id).status().code(), ErrorCode::kInvalidArgument);
  pair.recv.reset();
  EXPECT_TRUE(pair.b->accept(pair.id).ok());
}

TEST_P(PluginTransportTest, a_channel_that_was_closed_on_both_ends_can_be_opened_again) {
  Pair pair(path());
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

TEST_P(PluginTransportTest, worlds_follow_one_another_in_one_process) {
  for (std::uint64_t world = 1; world <= 5; ++world) {
    PluginTransportOptions options = make_options(path(), 2);
    options.world_id = world;
    Pair pair(options, options);
    pair.open();
    const Bytes message = pattern(400'000, world);
    const RequestId sent = must(pair.send->isend(message));
    Bytes into(message.size());
    const RequestId posted = must(pair.recv->irecv_fragments(into.size()));
    ASSERT_TRUE(drive(pair.both(), [&] {
      return take_fragments(*pair.recv, posted, into) && must(pair.send->test(sent));
    }));
    EXPECT_TRUE(into == message);
  }
}

TEST_P(PluginTransportTest, ends_may_have_different_numbers_of_connections) {
  Pair pair(make_options(path(), 7), make_options(path(), 1));
  pair.open();
  const Bytes message = pattern(3'000'000, 3);
  const RequestId sent = must(pair.send->isend(message));
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(),
                    [&] { return must(pair.recv->test(posted)) && must(pair.send->test(sent)); }));
  EXPECT_TRUE(into == message);
}

TEST_P(PluginTransportTest, many_channels_between_three_ranks_do_not_mix_their_messages) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::uint32_t kLanes = 4;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Transport*> all;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    transports.push_back(make_transport(make_options(path())));
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

TEST_P(PluginTransportTest, ranks_in_threads_pass_messages_around_a_ring) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::size_t kRounds = 40;
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    transports.push_back(make_transport(make_options(path(), 2)));
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
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back(run_rank, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_P(PluginTransportTest, a_message_without_a_receive_waits_with_its_sender) {
  Pair pair(path());
  pair.open();
  const Bytes message = pattern(std::size_t{64} << 20, 5);
  const RequestId sent = must(pair.send->isend(message));
  for (int i = 0; i < 1000; ++i) {
    bool moved = false;
    expect_polls(*pair.a, moved);
    expect_polls(*pair.b, moved);
  }
  EXPECT_FALSE(must(pair.send->test(sent))) << "64 MiB cannot all be in the network";
  EXPECT_EQ(pair.b->bytes_received(), 0U) << "nothing is buffered here";
  EXPECT_FALSE(is_readable(*pair.b));
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(),
                    [&] { return must(pair.recv->test(posted)) && must(pair.send->test(sent)); }));
  EXPECT_TRUE(into == message);
}

TEST_P(PluginTransportTest, an_idle_pair_is_quiet_after_traffic) {
  Pair pair(path(), 2);
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

TEST_P(PluginTransportTest, a_later_message_arrives_while_a_fragment_of_an_earlier_one_is_held) {
  Pair pair(path(), 4);
  pair.open();
  const Bytes first = pattern(kPieceBytes - 64, 7);
  const Bytes second = pattern(kPieceBytes * 2, 8);
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

/// A message as its taker sees it.
struct Shown {
  explicit Shown(std::size_t size) : bytes(size), times(size) {}

  static void take(void* context, const Fragment& fragment) {
    auto& shown = *static_cast<Shown*>(context);
    EXPECT_EQ(fragment.offset % 64, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(fragment.bytes.data()) % 8, 0U);
    for (std::size_t i = 0; i < fragment.bytes.size(); ++i) {
      shown.bytes.at(fragment.offset + i) = fragment.bytes[i];
      ++shown.times.at(fragment.offset + i);
    }
    ++shown.calls;
  }

  Bytes bytes;
  std::vector<int> times;
  std::atomic<int> calls{0};  ///< To be read while another thread may call.
};

TEST_P(PluginTransportTest, messages_are_shown_to_takers_where_the_plugin_can) {
  Pair pair(path(), 2);
  pair.open();
  EXPECT_EQ(pair.recv->can_take(), std::string(GetParam().name) == "harp");
  if (!pair.recv->can_take()) {
    EXPECT_EQ(pair.recv->irecv_taken(1, {}).status().code(), ErrorCode::kUnimplemented);
    return;
  }
  const std::vector<Bytes> messages = make_messages(seam_sizes());
  std::deque<Shown> shown;
  std::vector<Bytes> whole(messages.size());
  RequestId received = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {  // Every third is an ordinary receive.
    shown.emplace_back(messages[i].size());
    whole[i].resize(messages[i].size());
    received = i % 3 == 2
                   ? must(pair.recv->irecv(whole[i]))
                   : must(pair.recv->irecv_taken(messages[i].size(), {Shown::take, &shown[i]}));
  }
  RequestId sent = 0;
  for (const Bytes& message : messages) {
    sent = must(pair.send->isend(message));
  }
  ASSERT_TRUE(drive(
      pair.both(), [&] { return must(pair.recv->test(received)) && must(pair.send->test(sent)); }));
  for (std::size_t i = 0; i < messages.size(); ++i) {
    EXPECT_TRUE((i % 3 == 2 ? whole[i] : shown[i].bytes) == messages[i]) << i;
    EXPECT_EQ(std::ranges::count(shown[i].times, 1), i % 3 == 2 ? 0 : std::ssize(messages[i]));
  }
}

TEST_P(PluginTransportTest, a_taker_is_not_called_after_cancel_and_learns_of_wrong_lengths) {
  Pair pair(path());
  pair.open();
  if (!pair.recv->can_take()) {
    return;
  }
  const Bytes message = pattern(20 * kPieceBytes, 3);
  Shown shown(message.size());
  const RequestId taken = must(pair.recv->irecv_taken(message.size(), {Shown::take, &shown}));
  (void)must(pair.send->isend(message));
  ASSERT_TRUE(drive(pair.both(), [&] { return shown.calls > 0; }));
  pair.recv->cancel();
  const auto before = shown.times;
  settle(pair.both());
  EXPECT_TRUE(shown.times == before);
  EXPECT_EQ(pair.recv->test(taken).status().code(), ErrorCode::kShutDown);

  Pair other(path());
  other.open();
  Shown longer(1000);
  const RequestId wrong = must(other.recv->irecv_taken(1000, {Shown::take, &longer}));
  const Bytes shorter = pattern(999, 4);
  (void)must(other.send->isend(shorter));
  ASSERT_TRUE(drive(other.both(), [&] { return !other.recv->test(wrong).ok(); }));
  EXPECT_EQ(other.recv->test(wrong).status().code(), ErrorCode::kPeerFailed);
}

TEST_P(PluginTransportTest, the_wrong_kind_of_question_is_the_callers_fault) {
  Pair pair(path());
  pair.open();
  Bytes into(8);
  const RequestId whole = must(pair.recv->irecv(into));
  EXPECT_EQ(pair.recv->next_fragment(whole).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pair.recv->test(99).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pair.send->test(0).status().code(), ErrorCode::kInvalidArgument);
}

TEST_P(PluginTransportTest, what_was_sent_before_a_close_arrives_after_it) {
  Pair pair(path());
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
}  // namespace lightcc
