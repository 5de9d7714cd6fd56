// Everything that goes wrong between two ends of a plugin channel ends with an error that names the
// rank, and strangers disturb nobody.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/transport/plugin/plugin_comm.hpp"
#include "lightcc/transport/plugin/plugin_frame.hpp"
#include "lightcc/transport/plugin/plugin_library.hpp"
#include "lightcc/transport/plugin/plugin_transport.hpp"

#include "transport/plugin_test_support.hpp"

namespace lightcc::plugin_failure_test {
namespace {

using namespace plugin_test;  // NOLINT: the tests' own helpers

class PluginFailureTest : public ::testing::TestWithParam<PluginUnderTest> {
 protected:
  static std::string path() { return GetParam().path; }
};
INSTANTIATE_TEST_SUITE_P(all, PluginFailureTest, ::testing::ValuesIn(kPlugins), plugin_name);

/// Drives until a test of the request fails, and returns the failure.
template <typename Channel>
Status failure_of(const std::vector<Transport*>& transports, Channel& channel, RequestId request) {
  Status failure;
  EXPECT_TRUE(drive(transports, [&] {
    failure = channel.test(request).status();
    return !failure.ok();
  }));
  return failure;
}

/// The channel carries a message, so its connections stand.
void warm_up(Pair& pair) {
  const Bytes message = pattern(100, 1);
  Bytes into(message.size());
  const RequestId posted = must(pair.recv->irecv(into));
  const RequestId sent = must(pair.send->isend(message));
  ASSERT_TRUE(drive(pair.both(),
                    [&] { return must(pair.recv->test(posted)) && must(pair.send->test(sent)); }));
}

TEST_P(PluginFailureTest, a_receiver_hears_that_its_sender_is_gone) {
  Bytes into(1000);
  Pair pair(path());
  pair.open();
  warm_up(pair);
  const RequestId posted = must(pair.recv->irecv(into));
  pair.send.reset();
  pair.a.reset();
  const Status failure = failure_of({pair.b.get()}, *pair.recv, posted);
  EXPECT_EQ(failure.code(), ErrorCode::kPeerFailed) << failure.message();
  EXPECT_EQ(failure.rank(), 0);
  EXPECT_EQ(pair.recv->irecv(into).status().code(), ErrorCode::kPeerFailed);
}

TEST_P(PluginFailureTest, a_sender_hears_that_its_receiver_is_gone) {
  const Bytes message = pattern(std::size_t{32} << 20, 2);
  Pair pair(path());
  pair.open();
  warm_up(pair);
  const RequestId sent = must(pair.send->isend(message));
  poll_often(pair.both(), 10);
  pair.recv.reset();
  pair.b.reset();
  const Status failure = failure_of({pair.a.get()}, *pair.send, sent);
  EXPECT_EQ(failure.code(), ErrorCode::kPeerFailed) << failure.message();
  EXPECT_EQ(failure.rank(), 1);
}

TEST_P(PluginFailureTest, a_receiver_that_takes_nothing_is_a_timeout) {
  ManualClock clock;
  PluginTransportOptions impatient = make_options(path());
  impatient.clock = &clock;
  impatient.user_timeout = std::chrono::seconds(10);
  const Bytes message = pattern(std::size_t{64} << 20, 3);
  Pair pair(impatient, make_options(path()));
  pair.open();
  warm_up(pair);
  const RequestId sent = must(pair.send->isend(message));
  poll_often(pair.both(), 200);
  for (int second = 0; second < 9; ++second) {
    clock.advance(std::chrono::seconds(1));
    poll_often({pair.a.get()}, 1);
  }
  EXPECT_TRUE(pair.send->test(sent).ok()) << "not yet";
  // A pause of the whole process is not the peer's fault.
  clock.advance(std::chrono::hours(1));
  poll_often({pair.a.get()}, 1);
  EXPECT_TRUE(pair.send->test(sent).ok());
  for (int second = 0; second < 3; ++second) {
    clock.advance(std::chrono::seconds(1));
    poll_often({pair.a.get()}, 1);
  }
  const Status failure = pair.send->test(sent).status();
  EXPECT_EQ(failure.code(), ErrorCode::kTimeout) << failure.message();
  EXPECT_EQ(failure.rank(), 1);
}

TEST_P(PluginFailureTest, nobody_listens_any_more) {
  PluginTransportOptions impatient = make_options(path());
  impatient.connect_timeout = std::chrono::seconds(2);
  const Bytes message = pattern(100, 4);
  Pair pair(impatient, make_options(path()));
  const TransportHandle handle = pair.b->handle();
  pair.b.reset();
  auto send = must(pair.a->connect(handle, pair.id));
  // Whatever the plugin says, and be it nothing.
  Status failure;
  if (auto sent = send->isend(message); sent.ok()) {
    failure = failure_of({pair.a.get()}, *send, *sent);
  } else {
    failure = sent.status();
  }
  EXPECT_TRUE(failure.code() == ErrorCode::kPeerFailed || failure.code() == ErrorCode::kTimeout)
      << failure.message();
  EXPECT_EQ(failure.rank(), 1);
}

TEST_P(PluginFailureTest, a_message_of_another_length_than_expected_is_the_peers_fault) {
  struct Case {
    std::size_t sent;
    std::size_t expected;
  };
  for (const Case& c : {Case{100, 99},
                        Case{99, 100},
                        Case{0, 1},
                        Case{1, 0},
                        Case{2 * kPieceBytes, kPieceBytes},
                        Case{kPieceBytes, 2 * kPieceBytes},
                        Case{kPieceBytes, 0},
                        Case{2 * kPieceBytes - 1, kPieceBytes - 1}}) {
    for (const bool fragments : {false, true}) {
      const Bytes message = pattern(c.sent, 5);
      Bytes into(c.expected);
      Pair pair(path(), 2);
      pair.open();
      (void)must(pair.send->isend(message));
      const RequestId posted =
          must(fragments ? pair.recv->irecv_fragments(c.expected) : pair.recv->irecv(into));
      Status failure;
      ASSERT_TRUE(drive(pair.both(),
                        [&] {
                          while (fragments && failure.ok()) {
                            auto fragment = pair.recv->next_fragment(posted);
                            failure = fragment.status();
                            if (!fragment.ok() || !fragment->has_value()) {
                              break;
                            }
                            pair.recv->release(**fragment);
                          }
                          if (failure.ok()) {
                            failure = pair.recv->test(posted).status();
                          }
                          return !failure.ok();
                        }))
          << c.sent << " sent, " << c.expected << " expected";
      EXPECT_EQ(failure.code(), ErrorCode::kPeerFailed) << failure.message();
      EXPECT_EQ(failure.rank(), 0);
    }
  }
}

TEST_P(PluginFailureTest, after_cancel_no_memory_is_touched_and_every_call_fails) {
  Pair pair(path());
  pair.open();
  warm_up(pair);
  auto message = std::make_unique<Bytes>(pattern(std::size_t{8} << 20, 6));
  auto into = std::make_unique<Bytes>(message->size());
  const RequestId sent = must(pair.send->isend(*message));
  const RequestId posted = must(pair.recv->irecv(*into));
  poll_often(pair.both(), 3);
  pair.send->cancel();
  pair.recv->cancel();
  message.reset();  // AddressSanitizer watches.
  into.reset();
  poll_often(pair.both(), 100);
  EXPECT_EQ(pair.send->test(sent).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(pair.recv->test(posted).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(pair.send->isend(Bytes(4)).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(pair.recv->irecv_fragments(4).status().code(), ErrorCode::kShutDown);
  settle(pair.both());
  EXPECT_FALSE(is_readable(*pair.a));
  EXPECT_FALSE(is_readable(*pair.b));
}

TEST_P(PluginFailureTest, a_held_fragment_stays_readable_after_cancel) {
  const Bytes message = pattern(5000, 7);
  Pair pair(path());
  pair.open();
  (void)must(pair.send->isend(message));
  const RequestId posted = must(pair.recv->irecv_fragments(message.size()));
  std::optional<Fragment> held;
  ASSERT_TRUE(drive(pair.both(), [&] {
    held = must(pair.recv->next_fragment(posted));
    return held.has_value();
  }));
  pair.recv->cancel();
  EXPECT_TRUE(std::ranges::equal(held->bytes, message));
  pair.recv->release(*held);
}

TEST_P(PluginFailureTest, a_channel_may_outlive_its_transport) {
  Pair pair(path());
  pair.open();
  warm_up(pair);
  pair.a.reset();
  pair.b.reset();
  (void)pair.send->isend(Bytes(0));
}

TEST_P(PluginFailureTest, a_wrong_secret_or_world_is_not_heard_and_disturbs_nobody) {
  PluginTransportOptions stranger_options = make_options(path());
  stranger_options.secret = "another secret";
  const Bytes lie = pattern(1000, 8);
  const Bytes truth = pattern(1000, 9);
  Bytes into(1000);
  auto stranger = make_transport(stranger_options);
  Pair pair(path());
  auto intruder = must(stranger->connect(pair.b->handle(), pair.id));
  (void)must(intruder->isend(lie));
  pair.recv = must(pair.b->accept(pair.id));
  const RequestId posted = must(pair.recv->irecv(into));
  poll_often({stranger.get(), pair.b.get()}, 2000);
  EXPECT_FALSE(must(pair.recv->test(posted)));
  pair.send = must(pair.a->connect(pair.b->handle(), pair.id));
  (void)must(pair.send->isend(truth));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(posted)); }));
  EXPECT_TRUE(into == truth);
  PluginTransportOptions elsewhere = make_options(path());
  elsewhere.world_id = kWorld + 1;
  EXPECT_EQ(make_transport(elsewhere)->connect(pair.b->handle(), pair.id).status().code(),
            ErrorCode::kInvalidArgument);
}

TEST_P(PluginFailureTest, a_connection_that_says_something_else_is_closed) {
  Bytes garbage = pattern(kPluginHelloBytes, 10);
  const Bytes truth = pattern(1000, 11);
  Bytes into(1000);
  Pair pair(path());
  const PluginHandle handle = must(decode_plugin_handle(pair.b->handle()));
  PluginLibrary* const library = must(PluginLibrary::load(path()));
  const auto context = must(PluginContext::open(*library, 1));
  alignas(16) NcclHandle copy = handle.handle;
  void* raw = nullptr;
  pair.recv = must(pair.b->accept(pair.id));
  const RequestId posted = must(pair.recv->irecv(into));
  while (raw == nullptr) {
    ASSERT_EQ(context->table().connect(context->get(), 0, copy.data(), &raw),
              abi::Result::kSuccess);
    poll_often({pair.b.get()}, 1);
  }
  PluginComm comm(context, raw, PluginComm::Kind::kSend, 1);
  while (!must(comm.post(garbage, garbage, 0))) {
    poll_often({pair.b.get()}, 1);
  }
  for (int i = 0; i < 2000; ++i) {
    PluginComm::Done done;
    if (!comm.is_idle()) {
      (void)comm.settle_oldest(&done);
    }
    poll_often({pair.b.get()}, 1);
  }
  pair.send = must(pair.a->connect(pair.b->handle(), pair.id));
  (void)must(pair.send->isend(truth));
  ASSERT_TRUE(drive(pair.both(), [&] { return must(pair.recv->test(posted)); }));
  EXPECT_TRUE(into == truth);
}

TEST_P(PluginFailureTest, bad_options_are_refused) {
  const auto code = [](const PluginTransportOptions& options) {
    return make_plugin_transport(options).status().code();
  };
  EXPECT_EQ(code(make_options(path(), 0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(make_options(path(), 17)), ErrorCode::kInvalidArgument);
  PluginTransportOptions options = make_options(path());
  options.user_timeout = {};
  EXPECT_EQ(code(options), ErrorCode::kInvalidArgument);
  options = make_options("/no/such/file.so");
  EXPECT_EQ(code(options), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace lightcc::plugin_failure_test
