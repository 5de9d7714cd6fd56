// What a stack does with the bytes of messages: how often they are copied, who sees them, what
// protects them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "datapath/datapath.hpp"
#include "datapath/packets.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"
#include "runtime/stack.hpp"
#include "runtime/world.hpp"

namespace harp::stack_placement_test {
namespace {

TEST_F(StackPair, every_byte_is_copied_once_on_transmit_and_once_on_receive) {
  transfer(world, *ends.client, *ends.server, 0);
  const DatapathStats before = left.stack->datapath().stats();
  constexpr std::size_t kBytes = 1'000'003;
  transfer(world, *ends.client, *ends.server, kBytes);
  EXPECT_EQ(right.stack->stats().bytes_copied, kBytes);
  EXPECT_EQ(left.stack->stats().bytes_copied, 0U);
  const DatapathStats after = left.stack->datapath().stats();
  const std::uint64_t headers = (after.packets_sent - before.packets_sent) * kHeaderBytes;
  EXPECT_EQ(after.bytes_sent - before.bytes_sent, kBytes + headers);
  EXPECT_EQ(after.bytes_copied_out - before.bytes_copied_out, kBytes);
  EXPECT_EQ(right.stack->datapath().stats().bytes_copied_in, 0U);
}

TEST(StackPlacement, payloads_carry_a_crc_exactly_where_the_datapath_has_no_checksum) {
  for (const bool has_checksum : {false, true}) {
    World world;
    StackConfig config;
    config.session.payload_crc = false;
    Node& left = world.add(config);
    Node& right = world.add(config);
    left.tap->makes_checksums = has_checksum;
    std::size_t payloads = 0;
    std::size_t crcs = 0;
    left.tap->watcher = [&](const Route&, auto head, auto payload) {
      payloads += payload.size();
      const bool has_crc = (head[1] & std::byte{flag::kCrc}) != std::byte{0};
      crcs += has_crc ? payload.size() : 0;
      return true;
    };
    const Ends ends = connect(world, left, right);
    const std::size_t before = payloads;  // A handshake is padded.
    transfer(world, *ends.client, *ends.server, 10'000);
    EXPECT_EQ(payloads - before, 10'000U);
    EXPECT_EQ(crcs, has_checksum ? 0U : 10'000U);
  }
}

/// A message as a taker gets it: what, and how often.
struct Taken {
  explicit Taken(std::size_t size) : bytes(size), times(size) {}

  static void take(void* context, std::size_t offset, const void* data, std::size_t count) {
    auto& taken = *static_cast<Taken*>(context);
    const std::span from(static_cast<const std::byte*>(data), count);
    for (std::size_t i = 0; i < count; ++i) {
      taken.bytes[offset + i] = from[i];
      ++taken.times[offset + i];
    }
  }

  PacketBytes bytes;
  std::vector<int> times;
};

TEST(StackPlacement, a_taker_sees_every_byte_once_and_nothing_is_copied_whatever_is_lost_or_early) {
  for (const bool is_early : {false, true}) {
    World world;
    Node& left = world.add();
    Node& right = world.add();
    std::uint64_t count = 0;
    left.tap->watcher = [&](const Route&, auto, auto) { return ++count % 7 != 0; };
    const Ends ends = connect(world, left, right);
    Taken taken(500'003);
    const PacketBytes sent = pattern(taken.bytes.size(), 1);
    const auto send = ends.client->send(sent, 9);
    if (is_early) {
      world.run_for(milliseconds(5));
    }
    const auto receive = ends.server->receive_taken(
        {.take = Taken::take, .context = &taken, .max_bytes = sent.size()});
    ASSERT_TRUE(send && receive);
    const auto done = answer(world, *ends.server, *receive);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->error, SessionError::kNone);
    EXPECT_EQ(done->bytes, sent.size());
    EXPECT_EQ(done->tag, 9);
    EXPECT_TRUE(taken.bytes == sent);
    EXPECT_EQ(std::ranges::count(taken.times, 1), std::ssize(sent));
    EXPECT_GT(left.stack->session_stats().data_bytes_retransmitted, 0U);
    if (!is_early) {
      EXPECT_EQ(right.stack->stats().bytes_copied, 0U);
      EXPECT_EQ(right.stack->stats().bytes_taken, sent.size());
    }
  }
}

TEST_F(StackPair, a_taker_is_not_called_once_its_session_is_closed) {
  Taken taken(4'000'000);
  const PacketBytes sent = pattern(taken.bytes.size(), 1);
  ASSERT_TRUE(ends.client->send(sent, 0));
  ASSERT_TRUE(ends.server->receive_taken(
      {.take = Taken::take, .context = &taken, .max_bytes = sent.size()}));
  ASSERT_TRUE(world.run_until([&] { return right.stack->stats().bytes_taken > 100'000; }));
  right.stack->close(*ends.server, world.now);
  const std::uint64_t before = right.stack->stats().bytes_taken;
  EXPECT_LT(before, sent.size());
  world.run_for(milliseconds(50));
  EXPECT_EQ(right.stack->stats().bytes_taken, before);
}

}  // namespace
}  // namespace harp::stack_placement_test
