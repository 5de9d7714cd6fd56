// The loopback transport keeps the contract of transport.hpp, and its faults are what they say.
#include "doubles/loopback_transport.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/transport/transport.hpp"

#include "doubles/fault_plan.hpp"

namespace lightcc::loopback_transport_test {
namespace {

constexpr int kManyPolls = 100000;

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>((i * 31 + i / 251 + seed) & 0xff);
  }
  return data;
}

/// Ranks 4 and 9 with a channel from 4 to 9.
struct Pair {
  explicit Pair(const FaultPlan& plan = FaultPlan()) : hub(plan) {
    left = hub.make_transport(4);
    right = hub.make_transport(9);
    const ChannelId id{.source = 4, .destination = 9, .process_set = 2, .lane = 1};
    sender = std::move(left->connect(right->handle(), id)).value();
    receiver = std::move(right->accept(id)).value();
  }
  void poll() {
    EXPECT_TRUE(left->poll().ok());
    EXPECT_TRUE(right->poll().ok());
  }
  template <typename Channel>
  Status wait(Channel& channel, RequestId request) {
    for (int i = 0; i < kManyPolls; ++i) {
      const auto done = channel.test(request);
      if (!done.ok() || done.value()) {
        return done.status();
      }
      poll();
    }
    return {ErrorCode::kTimeout, "never done"};
  }

  LoopbackHub hub;
  std::unique_ptr<Transport> left;
  std::unique_ptr<Transport> right;
  std::unique_ptr<SendChannel> sender;
  std::unique_ptr<RecvChannel> receiver;
};

TEST(LoopbackTransport, messages_arrive_in_order_with_their_lengths) {
  Pair pair(FaultPlan(7).delay(3).fragment(200).capacity(1000));
  const std::vector<std::size_t> sizes{0, 1, 63, 64, 65, 5000, 0, 64000};
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received;
  for (const std::size_t size : sizes) {
    sent.push_back(pattern(size, static_cast<unsigned>(size)));
    received.emplace_back(size);
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(pair.sender->isend(sent[i]).value(), i);
    EXPECT_EQ(pair.receiver->irecv(received[i]).value(), i);
  }
  EXPECT_TRUE(pair.wait(*pair.receiver, sizes.size() - 1).ok());
  EXPECT_TRUE(pair.wait(*pair.sender, sizes.size() - 1).ok());
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(pair.hub.unfired_faults().empty());
  EXPECT_EQ(pair.left->bytes_sent(), 0U + 1 + 63 + 64 + 65 + 5000 + 0 + 64000);
  EXPECT_EQ(pair.right->bytes_received(), pair.left->bytes_sent());
}

TEST(LoopbackTransport, fragments_cover_every_byte_once_and_are_aligned) {
  Pair pair(FaultPlan(3).fragment(256));
  const auto sent = pattern(10007, 5);
  std::vector<std::byte> received(sent.size());
  std::vector<int> seen(sent.size());
  ASSERT_TRUE(pair.sender->isend(sent).ok());
  const RequestId request = pair.receiver->irecv_fragments(sent.size()).value();
  bool out_of_order = false;
  std::size_t expected_offset = 0;
  for (int i = 0; i < kManyPolls && !pair.receiver->test(request).value(); ++i) {
    const auto fragment = pair.receiver->next_fragment(request).value();
    if (!fragment.has_value()) {
      pair.poll();
      continue;
    }
    EXPECT_FALSE(pair.receiver->next_fragment(request).ok()) << "not released yet";
    EXPECT_EQ(fragment->offset % 64, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(fragment->bytes.data()) % 64, 0U);
    EXPECT_TRUE(fragment->bytes.size() % 64 == 0 ||
                fragment->offset + fragment->bytes.size() == sent.size());
    out_of_order = out_of_order || fragment->offset != expected_offset;
    expected_offset = fragment->offset + fragment->bytes.size();
    for (std::size_t k = 0; k < fragment->bytes.size(); ++k) {
      received[fragment->offset + k] = fragment->bytes[k];
      ++seen[fragment->offset + k];
    }
    pair.receiver->release(*fragment);
  }
  EXPECT_TRUE(pair.receiver->test(request).value());
  EXPECT_EQ(received, sent);
  EXPECT_EQ(seen, std::vector<int>(sent.size(), 1));
  EXPECT_TRUE(out_of_order) << "the plan promises random order";
}

TEST(LoopbackTransport, a_full_link_holds_the_sender_back) {
  Pair pair(FaultPlan(1).capacity(128));
  const auto sent = pattern(1000, 0);
  const RequestId request = pair.sender->isend(sent).value();
  for (int i = 0; i < 100; ++i) {
    pair.poll();
  }
  EXPECT_FALSE(pair.sender->test(request).value());
  EXPECT_EQ(pair.left->bytes_sent(), 128U);
  std::vector<std::byte> received(sent.size());
  const RequestId expected = pair.receiver->irecv(received).value();
  EXPECT_TRUE(pair.wait(*pair.receiver, expected).ok());
  EXPECT_EQ(received, sent);
}

TEST(LoopbackTransport, a_cut_link_fails_both_ends_naming_the_other) {
  Pair pair(FaultPlan(1).cut(4, 9, 1));
  const auto sent = pattern(100, 0);
  std::vector<std::byte> received(sent.size());
  std::vector<std::byte> lost(sent.size());
  ASSERT_TRUE(pair.sender->isend(sent).ok());
  ASSERT_TRUE(pair.receiver->irecv(received).ok());
  EXPECT_TRUE(pair.wait(*pair.receiver, 0).ok());
  EXPECT_EQ(pair.hub.unfired_faults().size(), 1U);
  ASSERT_TRUE(pair.sender->isend(sent).ok());
  ASSERT_TRUE(pair.receiver->irecv(lost).ok());
  const Status at_receiver = pair.wait(*pair.receiver, 1);
  const Status at_sender = pair.wait(*pair.sender, 1);
  EXPECT_EQ(at_receiver.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(at_receiver.rank(), 4);
  EXPECT_EQ(at_sender.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(at_sender.rank(), 9);
  EXPECT_TRUE(pair.sender->test(0).value()) << "what was done before stays done";
  EXPECT_TRUE(pair.hub.unfired_faults().empty());
}

TEST(LoopbackTransport, a_stalled_link_delivers_nothing_and_says_nothing) {
  Pair pair(FaultPlan(1).stall(4, 9, 0));
  const auto sent = pattern(100, 0);
  std::vector<std::byte> received(sent.size());
  ASSERT_TRUE(pair.sender->isend(sent).ok());
  ASSERT_TRUE(pair.receiver->irecv(received).ok());
  for (int i = 0; i < 1000; ++i) {
    pair.poll();
  }
  EXPECT_FALSE(pair.receiver->test(0).value());
  EXPECT_EQ(received, std::vector<std::byte>(sent.size()));
  EXPECT_TRUE(pair.hub.unfired_faults().empty());
}

TEST(LoopbackTransport, a_message_of_another_length_is_the_peers_fault) {
  Pair pair;
  const auto sent = pattern(100, 0);
  std::vector<std::byte> received(99);
  ASSERT_TRUE(pair.sender->isend(sent).ok());
  ASSERT_TRUE(pair.receiver->irecv(received).ok());
  const Status status = pair.wait(*pair.receiver, 0);
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(status.rank(), 4);
}

TEST(LoopbackTransport, what_was_sent_before_closing_still_arrives) {
  Pair pair;
  const auto sent = pattern(100, 0);
  std::vector<std::byte> received(sent.size());
  std::vector<std::byte> never(sent.size());
  ASSERT_TRUE(pair.sender->isend(sent).ok());
  ASSERT_TRUE(pair.wait(*pair.sender, 0).ok());
  pair.sender.reset();
  ASSERT_TRUE(pair.receiver->irecv(received).ok());
  ASSERT_TRUE(pair.receiver->irecv(never).ok());
  EXPECT_TRUE(pair.wait(*pair.receiver, 0).ok());
  EXPECT_EQ(received, sent);
  EXPECT_EQ(pair.wait(*pair.receiver, 1).code(), ErrorCode::kPeerFailed);
}

TEST(LoopbackTransport, cancelling_lets_go_of_memory_and_tells_the_peer) {
  Pair pair(FaultPlan(1).capacity(64));
  auto sent = std::make_unique<std::vector<std::byte>>(pattern(1000, 0));
  std::vector<std::byte> received(1000);
  ASSERT_TRUE(pair.sender->isend(*sent).ok());
  ASSERT_TRUE(pair.receiver->irecv(received).ok());
  pair.poll();
  pair.sender->cancel();
  sent.reset();  // AddressSanitizer objects if anything still reads it.
  EXPECT_EQ(pair.wait(*pair.receiver, 0).code(), ErrorCode::kPeerFailed);
  EXPECT_FALSE(pair.sender->isend(received).ok());
  EXPECT_FALSE(pair.sender->test(0).ok());
}

TEST(LoopbackTransport, channels_connect_in_any_order_and_may_be_opened_again) {
  LoopbackHub hub;
  const auto left = hub.make_transport(0);
  const auto right = hub.make_transport(1);
  const ChannelId id{.source = 0, .destination = 1, .process_set = 0, .lane = 0};
  for (int round = 0; round < 3; ++round) {
    auto receiver = std::move(right->accept(id)).value();
    std::vector<std::byte> received(10);
    ASSERT_TRUE(receiver->irecv(received).ok());
    ASSERT_TRUE(right->poll().ok());
    auto sender = std::move(left->connect(right->handle(), id)).value();
    const auto sent = pattern(10, static_cast<unsigned>(round));
    ASSERT_TRUE(sender->isend(sent).ok());
    ASSERT_TRUE(left->poll().ok());
    ASSERT_TRUE(right->poll().ok());
    EXPECT_TRUE(receiver->test(0).value());
    EXPECT_EQ(received, sent);
  }
}

TEST(LoopbackTransport, a_channel_that_does_not_fit_the_transport_is_refused) {
  LoopbackHub hub;
  const auto left = hub.make_transport(0);
  const ChannelId elsewhere{.source = 1, .destination = 2, .process_set = 0, .lane = 0};
  EXPECT_EQ(left->accept(elsewhere).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(left->connect(LoopbackHub::handle_of(2), elsewhere).status().code(),
            ErrorCode::kInvalidArgument);
}

TEST(LoopbackTransport, ranks_may_be_threads) {
  Pair pair(FaultPlan(11).delay(2).fragment(512).capacity(2048));
  const auto sent = pattern(100000, 1);
  std::vector<std::byte> received(sent.size());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto drive = [&](Transport& transport, auto& channel, RequestId request) {
    while (std::chrono::steady_clock::now() < deadline) {
      ASSERT_TRUE(transport.poll().ok());
      if (channel.test(request).value()) {
        return;
      }
      std::this_thread::yield();
    }
    ADD_FAILURE() << "not done within a minute";
  };
  std::thread other([&] {
    const RequestId request = pair.receiver->irecv(received).value();
    drive(*pair.right, *pair.receiver, request);
  });
  const RequestId request = pair.sender->isend(sent).value();
  drive(*pair.left, *pair.sender, request);
  other.join();
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace lightcc::loopback_transport_test
