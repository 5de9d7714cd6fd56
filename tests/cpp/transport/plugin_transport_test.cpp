// What is the plugins' own (the reference plugin over TCP, and HARP) beyond the contract
// (transport_contract_test.cpp): worlds that follow one another, and sinks.
#include "lightcc/transport/plugin/plugin_transport.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/transport/plugin/plugin_frame.hpp"

#include "transport/plugin_test_support.hpp"

namespace lightcc::plugin_transport_test {
namespace {

using namespace plugin_test;  // NOLINT: the tests' own helpers

class PluginTransportTest : public ::testing::TestWithParam<PluginUnderTest> {
 protected:
  static std::string path() { return GetParam().path; }
};
INSTANTIATE_TEST_SUITE_P(all, PluginTransportTest, ::testing::ValuesIn(kPlugins), plugin_name);

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

/// A message as its sink sees it.
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

TEST_P(PluginTransportTest, messages_are_shown_to_sinks_where_the_plugin_can) {
  Pair pair(path(), 2);
  pair.open();
  EXPECT_EQ(pair.recv->can_receive_to_sink(), std::string(GetParam().name) == "harp");
  if (!pair.recv->can_receive_to_sink()) {
    EXPECT_EQ(pair.recv->irecv_to_sink(1, {}).status().code(), ErrorCode::kUnimplemented);
    return;
  }
  const std::vector<Bytes> messages = make_messages(seam_sizes(kPieceBytes));
  std::deque<Shown> shown;
  std::vector<Bytes> whole(messages.size());
  RequestId received = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {  // Every third is an ordinary receive.
    shown.emplace_back(messages[i].size());
    whole[i].resize(messages[i].size());
    received = i % 3 == 2
                   ? must(pair.recv->irecv(whole[i]))
                   : must(pair.recv->irecv_to_sink(messages[i].size(), {Shown::take, &shown[i]}));
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

TEST_P(PluginTransportTest, a_sink_is_not_called_after_cancel_and_learns_of_wrong_lengths) {
  Pair pair(path());
  pair.open();
  if (!pair.recv->can_receive_to_sink()) {
    return;
  }
  const Bytes message = pattern(20 * kPieceBytes, 3);
  Shown shown(message.size());
  const RequestId taken = must(pair.recv->irecv_to_sink(message.size(), {Shown::take, &shown}));
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
  const RequestId wrong = must(other.recv->irecv_to_sink(1000, {Shown::take, &longer}));
  const Bytes shorter = pattern(999, 4);
  (void)must(other.send->isend(shorter));
  ASSERT_TRUE(drive(other.both(), [&] { return !other.recv->test(wrong).ok(); }));
  EXPECT_EQ(other.recv->test(wrong).status().code(), ErrorCode::kPeerFailed);
}

}  // namespace
}  // namespace lightcc::plugin_transport_test
