// What is TCP's own beyond the contract (transport_contract_test.cpp): IPv6, messages of gigabytes,
// the rate limit, options.
#include "lightcc/transport/tcp/tcp_transport.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/unique_fd.hpp"

#include "transport/tcp_test_support.hpp"

namespace lightcc::tcp_transport_test {
namespace {

using namespace tcp_test;  // NOLINT: the tests' own helpers

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
}  // namespace lightcc::tcp_transport_test
