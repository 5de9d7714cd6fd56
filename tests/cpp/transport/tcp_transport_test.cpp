// Messages over real loopback sockets: every size around the seams, both kinds of receive, both
// orders of connect and accept, many channels, big messages, backpressure, rate, counters.
#include "lightcc/transport/tcp/tcp_transport.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/unique_fd.hpp"

#include "transport/tcp_test_support.hpp"

namespace lightcc {
namespace {

using namespace tcp_test;  // NOLINT: the tests' own helpers

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
                                                  kStripeBytes - 1,
                                                  0,
                                                  kStripeBytes,
                                                  kStripeBytes + 1,
                                                  3 * kStripeBytes + 100,
                                                  (std::size_t{5} << 20) + 7,
                                                  0};
  return kSizes;
}

/// The receiving side of a list of messages, posted all at once or one after the other.
class Receiver {
 public:
  Receiver(RecvChannel& channel, std::vector<std::size_t> sizes, Kind kind)
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

class TcpMessagesTest : public ::testing::TestWithParam<std::tuple<int, Kind, bool>> {};

TEST_P(TcpMessagesTest, every_size_around_the_seams_arrives_intact_and_in_order) {
  const auto [connections, kind, post_first] = GetParam();
  Pair pair(connections);
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
  EXPECT_TRUE(must(pair.send->test(last)));

  std::uint64_t wire_bytes = 0;
  for (const Bytes& message : messages) {
    wire_bytes += message_wire_bytes(message.size());
  }
  EXPECT_EQ(pair.a->bytes_sent(), wire_bytes);
  EXPECT_EQ(pair.b->bytes_received(), wire_bytes);
  EXPECT_EQ(pair.b->bytes_sent(), 0U);
}

std::string params_name(const ::testing::TestParamInfo<TcpMessagesTest::ParamType>& info) {
  const char* const kNames[] = {"whole", "fragments", "mixed"};
  return std::to_string(std::get<0>(info.param)) + "_connections_" +
         kNames[static_cast<int>(std::get<1>(info.param))] +
         (std::get<2>(info.param) ? "_posted_first" : "_posted_late");
}

INSTANTIATE_TEST_SUITE_P(
    all,
    TcpMessagesTest,
    ::testing::Combine(::testing::Values(1, 2, 5, 16),
                       ::testing::Values(Kind::kWhole, Kind::kFragments, Kind::kMixed),
                       ::testing::Bool()),
    params_name);

TEST(TcpTransportTest, accept_may_come_long_after_the_messages) {
  Pair pair;
  pair.send = must(pair.a->connect(pair.b->handle(), pair.id));
  const Bytes message = pattern(300'000, 1);
  const RequestId sent = must(pair.send->isend(message));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.send->test(sent)); }));
  settle(pair.both());
  EXPECT_FALSE(is_readable(*pair.b)) << "sockets that wait for accept() must not burn CPU";
  pair.recv = must(pair.b->accept(pair.id));
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(posted)); }));
  EXPECT_TRUE(into == message);
}

TEST(TcpTransportTest, accept_may_come_long_before_connect) {
  Pair pair;
  pair.recv = must(pair.b->accept(pair.id));
  Bytes into(1000);
  const RequestId posted = must(pair.recv->irecv(into));
  settle(pair.both());
  EXPECT_FALSE(is_readable(*pair.b));
  pair.send = must(pair.a->connect(pair.b->handle(), pair.id));
  const Bytes message = pattern(1000, 2);
  (void)must(pair.send->isend(message));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(posted)); }));
  EXPECT_TRUE(into == message);
}

TEST(TcpTransportTest, a_channel_can_be_accepted_once_until_it_is_destroyed) {
  Pair pair;
  pair.open();
  EXPECT_EQ(pair.b->accept(pair.id).status().code(), ErrorCode::kInvalidArgument);
  pair.recv.reset();
  EXPECT_TRUE(pair.b->accept(pair.id).ok());
}

TEST(TcpTransportTest, a_channel_that_was_closed_on_both_ends_can_be_opened_again) {
  Pair pair;
  for (int round = 0; round < 20; ++round) {
    pair.open();
    const Bytes message = pattern(5000, static_cast<std::uint64_t>(round));
    (void)must(pair.send->isend(message));
    Bytes into(message.size());
    const RequestId posted = must(pair.recv->irecv(into));
    ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(posted)); })) << round;
    EXPECT_TRUE(into == message);
    pair.recv.reset();
    pair.send.reset();
  }
}

TEST(TcpTransportTest, ends_may_have_different_numbers_of_connections) {
  Pair pair(make_options(7), make_options(1));
  pair.open();
  const Bytes message = pattern(3'000'000, 3);
  (void)must(pair.send->isend(message));
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(posted)); }));
  EXPECT_TRUE(into == message);
}

TEST(TcpTransportTest, works_over_ipv6) {
  TcpTransportOptions options = make_options();
  options.address = SocketAddress::resolve("[::1]:0").value();
  if (const auto probe = make_tcp_transport(options); !probe.ok()) {
    GTEST_SKIP() << "no IPv6 loopback here: " << probe.status().message();
  }
  Pair pair(options, options);
  pair.open();
  const Bytes message = pattern(100, 4);
  (void)must(pair.send->isend(message));
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(posted)); }));
  EXPECT_TRUE(into == message);
}

TEST(TcpTransportTest, many_channels_between_three_ranks_do_not_mix_their_messages) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::uint32_t kLanes = 8;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Transport*> all;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    transports.push_back(make_transport(make_options(2)));
    all.push_back(transports.back().get());
  }
  struct Flow {
    std::unique_ptr<SendChannel> send;
    std::unique_ptr<RecvChannel> recv;
    Bytes message;
    Bytes into;
    RequestId posted = 0;
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
        (void)must(flows.back().send->isend(flows.back().message));
      }
    }
  }
  ASSERT_TRUE(drive(all, [&] {
    return std::ranges::all_of(flows,
                               [](Flow& flow) { return must(flow.recv->test(flow.posted)); });
  }));
  for (const Flow& flow : flows) {
    EXPECT_TRUE(flow.into == flow.message);
  }
}

TEST(TcpTransportTest, ranks_in_threads_pass_messages_around_a_ring) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::size_t kRounds = 40;
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    transports.push_back(make_transport(make_options(3)));
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

TEST(TcpTransportTest, a_message_without_a_receive_waits_in_the_network_and_costs_nothing) {
  Pair pair;
  pair.open();
  const Bytes message = pattern(std::size_t{64} << 20, 5);
  const RequestId sent = must(pair.send->isend(message));
  settle(pair.both());
  EXPECT_FALSE(must(pair.send->test(sent))) << "64 MiB cannot all be in the kernel";
  EXPECT_LE(pair.b->bytes_received(), 2 * kStripeHeaderBytes) << "nothing is buffered here";
  EXPECT_FALSE(is_readable(*pair.a));
  EXPECT_FALSE(is_readable(*pair.b));
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(posted)); }));
  EXPECT_TRUE(into == message);
}

TEST(TcpTransportTest, an_idle_pair_is_quiet_after_traffic) {
  Pair pair;
  pair.open();
  const Bytes message = pattern(1'000'000, 6);
  Bytes into(message.size());
  for (int round = 0; round < 3; ++round) {
    const RequestId posted = must(pair.recv->irecv(into));
    (void)must(pair.send->isend(message));
    ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(posted)); }));
  }
  settle(pair.both());
  EXPECT_FALSE(is_readable(*pair.a));
  EXPECT_FALSE(is_readable(*pair.b));
}

TEST(TcpTransportTest, a_later_message_arrives_while_fragments_of_an_earlier_one_are_held) {
  Pair pair(4);
  pair.open();
  const Bytes first = pattern(kStripeBytes, 7);
  const Bytes second = pattern(kStripeBytes * 2, 8);
  Bytes into_first(first.size());
  Bytes into_second(second.size());
  const RequestId fragments = must(pair.recv->irecv_fragments(first.size()));
  const RequestId whole = must(pair.recv->irecv(into_second));
  (void)must(pair.send->isend(first));
  (void)must(pair.send->isend(second));
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
  ASSERT_TRUE(
      drive(pair.both(), [&] { return take_fragments(*pair.recv, fragments, into_first); }));
  EXPECT_TRUE(into_first == first);
}

TEST(TcpTransportTest, the_wrong_kind_of_question_is_the_callers_fault) {
  Pair pair;
  pair.open();
  Bytes into(8);
  const RequestId whole = must(pair.recv->irecv(into));
  EXPECT_EQ(pair.recv->next_fragment(whole).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pair.recv->test(99).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pair.send->test(0).status().code(), ErrorCode::kInvalidArgument);
}

// Under ThreadSanitizer every byte of a system call is looked up in the shadow: gigabytes take
// minutes there, and say nothing about threads.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
constexpr bool kThreadSanitizer = false;
#endif

/// Virtual memory of any size over one small file: reading and writing it costs no memory.
class AliasedMemory {
 public:
  explicit AliasedMemory(std::size_t bytes) : bytes_(bytes) {
    constexpr std::size_t kPiece = std::size_t{4} << 20;
    const UniqueFd file(::memfd_create("aliased", MFD_CLOEXEC));
    void* all =
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    usable_ = file.valid() && ::ftruncate(file.get(), kPiece) == 0 && all != MAP_FAILED;
    data_ = static_cast<std::byte*>(all);
    for (std::size_t at = 0; usable_ && at < bytes; at += kPiece) {
      usable_ = ::mmap(data_ + at,
                       std::min(kPiece, bytes - at),
                       PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED,
                       file.get(),
                       0) != MAP_FAILED;
    }
  }
  ~AliasedMemory() { ::munmap(data_, bytes_); }
  AliasedMemory(const AliasedMemory&) = delete;
  AliasedMemory& operator=(const AliasedMemory&) = delete;
  bool usable() const { return usable_; }
  std::span<std::byte> bytes() const { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
  bool usable_ = false;
};

TEST(TcpTransportTest, messages_of_more_than_two_gigabytes_arrive_by_both_kinds_of_receive) {
  constexpr std::size_t kBytes = (std::size_t{1} << (kThreadSanitizer ? 26 : 31)) + 12'345;
  const AliasedMemory source(kBytes);
  const AliasedMemory target(kBytes);
  ASSERT_TRUE(source.usable() && target.usable());
  const Bytes piece = pattern(std::size_t{4} << 20, 9);
  std::ranges::copy(piece, source.bytes().begin());
  Pair pair;
  pair.open();
  (void)must(pair.send->isend(source.bytes()));
  const RequestId whole = must(pair.recv->irecv(target.bytes()));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(whole)); }));
  EXPECT_TRUE(std::ranges::equal(target.bytes().first(piece.size()), piece));

  (void)must(pair.send->isend(source.bytes()));
  const RequestId fragments = must(pair.recv->irecv_fragments(kBytes));
  std::uint64_t total = 0;
  std::size_t end = 0;
  ASSERT_TRUE(drive(pair.both(), [&] {
    while (auto fragment = must(pair.recv->next_fragment(fragments))) {
      total += fragment->bytes.size();
      end = std::max(end, fragment->offset + fragment->bytes.size());
      const std::size_t at = fragment->offset % piece.size();
      EXPECT_EQ(std::memcmp(fragment->bytes.data(), piece.data() + at, fragment->bytes.size()), 0);
      pair.recv->release(*fragment);
    }
    return must(pair.recv->test(fragments));
  }));
  EXPECT_EQ(total, kBytes);
  EXPECT_EQ(end, kBytes);
  EXPECT_EQ(pair.a->bytes_sent(), 2 * message_wire_bytes(kBytes));
}

TEST(TcpTransportTest, the_rate_limit_follows_the_injected_clock) {
  constexpr std::int64_t kRate = 10'000'000;
  ManualClock clock;
  TcpTransportOptions limited = make_options();
  limited.rate_bytes_per_s = kRate;
  limited.clock = &clock;
  Pair pair(limited, make_options());
  const ChannelId other_id{0, 1, 0, 1};
  pair.open();
  auto other_send = must(pair.a->connect(pair.b->handle(), other_id));
  auto other_recv = must(pair.b->accept(other_id));
  const Bytes message = pattern(50'000'000, 10);
  Bytes into(message.size());
  Bytes other_into(message.size());
  (void)must(pair.send->isend(message));
  (void)must(other_send->isend(message));
  (void)must(pair.recv->irecv(into));
  (void)must(other_recv->irecv(other_into));

  const auto run = [&] {
    for (int i = 0; i < 50; ++i) {
      bool moved = false;
      expect_polls(*pair.a, moved);
      expect_polls(*pair.b, moved);
    }
  };
  ASSERT_TRUE(drive(pair.both(), [&] { return pair.a->bytes_sent() > 0; }));
  run();
  const std::uint64_t burst = pair.a->bytes_sent();
  EXPECT_LE(burst, 100'000U) << "10 ms worth while the clock stands still";
  for (int step = 0; step < 500; ++step) {
    clock.advance(std::chrono::milliseconds(2));
    run();
  }
  const auto sent = static_cast<double>(pair.a->bytes_sent() - burst);
  EXPECT_LE(sent, 1.02 * kRate);
  EXPECT_GE(sent, 0.90 * kRate);
}

TEST(TcpTransportTest, rate_limited_channels_wake_by_their_own_timer_and_share) {
  TcpTransportOptions limited = make_options();
  limited.rate_bytes_per_s = 50'000'000;
  Pair pair(limited, make_options());
  struct Flow {
    std::unique_ptr<SendChannel> send;
    std::unique_ptr<RecvChannel> recv;
    Bytes into;
    RequestId posted = 0;
  };
  const Bytes message = pattern(1'500'000, 11);
  std::vector<Flow> flows;
  for (std::uint32_t lane = 0; lane < 4; ++lane) {
    Flow flow;
    flow.send = must(pair.a->connect(pair.b->handle(), {0, 1, 0, lane}));
    flow.recv = must(pair.b->accept({0, 1, 0, lane}));
    flow.into.resize(message.size());
    flow.posted = must(flow.recv->irecv(flow.into));
    (void)must(flow.send->isend(message));
    flows.push_back(std::move(flow));
  }
  ASSERT_TRUE(drive(pair.both(), [&] {
    return std::ranges::all_of(flows,
                               [](Flow& flow) { return must(flow.recv->test(flow.posted)); });
  }));
  for (const Flow& flow : flows) {
    EXPECT_TRUE(flow.into == message);
  }
}

TEST(TcpTransportTest, bad_options_are_refused) {
  const auto code = [](const TcpTransportOptions& options) {
    return make_tcp_transport(options).status().code();
  };
  TcpTransportOptions options = make_options(0);
  EXPECT_EQ(code(options), ErrorCode::kInvalidArgument);
  options = make_options(17);
  EXPECT_EQ(code(options), ErrorCode::kInvalidArgument);
  options = make_options();
  options.rate_bytes_per_s = -1;
  EXPECT_EQ(code(options), ErrorCode::kInvalidArgument);
  options = make_options();
  options.address = SocketAddress::resolve("0.0.0.0:0").value();
  EXPECT_EQ(code(options), ErrorCode::kInvalidArgument);
  options.address = SocketAddress::resolve("[::]:0").value();
  EXPECT_EQ(code(options), ErrorCode::kInvalidArgument);
  options.address = SocketAddress::abstract_unix("lightcc-test");
  EXPECT_EQ(code(options), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace lightcc
