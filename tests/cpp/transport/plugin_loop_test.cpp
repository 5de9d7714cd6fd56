// When the loop of a plugin transport pumps, wakes and rests.
#include "lightcc/transport/plugin/plugin_loop.hpp"

#include <poll.h>

#include <gtest/gtest.h>

#include "transport/transport_test_support.hpp"

namespace lightcc::plugin_loop_test {
namespace {

using namespace transport_test;  // NOLINT: the tests' own helpers

struct Sink final : PluginSink {
  bool is_active() const override { return requests > 0; }
  bool pump() override {
    ++pumps;
    return false;
  }
  void rest() override { ++rests; }

  int requests = 0;
  int pumps = 0;
  int rests = 0;
};

struct Loop {
  Loop() { loop->join(sink); }

  /// Who sleeps is woken: there is a timer.
  bool wakes() const {
    loop->prepare_to_wait();
    return becomes_readable();
  }
  bool becomes_readable() const {
    pollfd ready{.fd = loop->wait_fd(), .events = POLLIN, .revents = 0};
    constexpr int kTimeoutMs = 100;  // A hundred times its longest interval.
    return ::poll(&ready, 1, kTimeoutMs) == 1;
  }

  ManualClock clock;
  std::shared_ptr<PluginLoop> loop = PluginLoop::make(clock).value();
  Sink sink;
};

TEST(PluginLoopTest, wakes_while_something_is_outstanding) {
  Loop one;
  EXPECT_FALSE(one.wakes());
  one.sink.requests = 1;
  one.loop->expect_work();
  EXPECT_TRUE(one.wakes());
  (void)one.loop->poll();
  EXPECT_EQ(one.sink.pumps, 1);
  EXPECT_TRUE(one.wakes());
}

TEST(PluginLoopTest, wakes_nobody_while_somebody_polls) {
  Loop one;
  one.sink.requests = 1;
  one.loop->expect_work();
  EXPECT_FALSE(one.becomes_readable()) << "before a poll";
  (void)one.loop->poll();
  EXPECT_FALSE(one.becomes_readable()) << "after it";
  ASSERT_TRUE(one.wakes());
  one.clock.advance(std::chrono::seconds(1));
  (void)one.loop->poll();
  EXPECT_FALSE(one.becomes_readable()) << "who polls again has been woken";
}

TEST(PluginLoopTest, rests_with_the_second_poll_that_finds_nothing_outstanding) {
  Loop one;
  one.sink.requests = 1;
  one.loop->expect_work();
  (void)one.loop->poll();
  one.sink.requests = 0;
  (void)one.loop->poll();
  EXPECT_EQ(one.sink.rests, 0) << "the next request may follow";
  EXPECT_TRUE(one.wakes()) << "if nobody polls before";
  (void)one.loop->poll();
  EXPECT_EQ(one.sink.rests, 1);
  EXPECT_FALSE(one.wakes());
  (void)one.loop->poll();
  EXPECT_EQ(one.sink.rests, 1) << "once";
  EXPECT_EQ(one.sink.pumps, 1) << "of what is not outstanding";
}

TEST(PluginLoopTest, does_not_rest_where_the_next_request_follows) {
  Loop one;
  for (int i = 0; i < 3; ++i) {
    one.sink.requests = 1;
    one.loop->expect_work();
    (void)one.loop->poll();
    one.sink.requests = 0;
    (void)one.loop->poll();
  }
  EXPECT_EQ(one.sink.rests, 0);
}

}  // namespace
}  // namespace lightcc::plugin_loop_test
