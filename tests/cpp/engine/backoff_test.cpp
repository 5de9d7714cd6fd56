// What a driver does between looks, in virtual time.
#include "lightcc/engine/backoff.hpp"

#include <chrono>
#include <string>

#include <gtest/gtest.h>

namespace lightcc::backoff_test {
namespace {

using namespace std::chrono_literals;

class VirtualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void pass(Duration time) { now_ += time; }

 private:
  TimePoint now_{};
};

/// A look takes 100 ns, and a core that is offered comes back after `yield_takes`.
class BackoffTest : public ::testing::Test {
 protected:
  Backoff backoff(const BackoffPolicy& policy) {
    return {policy, clock_, [this] { clock_.pass(yield_takes); }};
  }
  /// For how long a driver looks until it sleeps.
  Duration wait(Backoff& backoff, Duration limit) {
    const TimePoint begin = clock_.now();
    backoff.reset();
    do {
      clock_.pass(100ns);
    } while (backoff.keep_looking(limit));
    return clock_.now() - begin;
  }

  VirtualClock clock_;
  Duration yield_takes = 400ns;
};

constexpr BackoffPolicy kPolicy = {
    .pause = 8us, .foreground = 200us, .background = 50us, .slow_yield = 2500us};

TEST_F(BackoffTest, PausesThenYieldsThenSleeps) {
  Backoff tested = backoff(kPolicy);
  const Duration waited = wait(tested, 200us);
  EXPECT_GE(waited, 200us);
  EXPECT_LT(waited, 205us);
  // It yields for the 192 us after the pause, once in 500 ns.
  EXPECT_GE(tested.yields(), 375U);
  EXPECT_LE(tested.yields(), 385U);
  EXPECT_EQ(tested.slow_yields(), 0U);
}

TEST_F(BackoffTest, DoesNotYieldForWhatComesWhileItPauses) {
  Backoff tested = backoff(kPolicy);
  for (int i = 0; i < 1000; ++i) {
    tested.reset();
    for (int look = 0; look < 70; ++look) {
      clock_.pass(100ns);
      ASSERT_TRUE(tested.keep_looking(200us));
    }
  }
  EXPECT_EQ(tested.yields(), 0U);
}

TEST_F(BackoffTest, SleepsEarlyForAWhileAfterACoreCameBackLate) {
  Backoff tested = backoff(kPolicy);
  yield_takes = 3ms;  // A busy process keeps the core for its slice.
  EXPECT_GE(wait(tested, 200us), 3ms);
  EXPECT_EQ(tested.yields(), 1U);
  EXPECT_EQ(tested.slow_yields(), 1U);
  yield_takes = 400ns;
  for (int i = 0; i < 64; ++i) {
    EXPECT_LT(wait(tested, 200us), 12us) << i;
  }
  EXPECT_EQ(tested.yields(), 1U);
  EXPECT_GE(wait(tested, 200us), 200us);  // It tries again.
}

TEST_F(BackoffTest, SleepsWithinThePauseWhereTheLimitIsShorter) {
  Backoff tested = backoff({.pause = 1ms, .foreground = 50us});
  EXPECT_LT(wait(tested, 50us), 55us);
  EXPECT_EQ(tested.yields(), 0U);
}

TEST(BackoffPolicyTest, RanksThatShareCoresYieldAtOnce) {
  EXPECT_EQ(backoff_policy(2, 2, false).pause, 8us);
  EXPECT_EQ(backoff_policy(4, 2, false).pause, 0us);
  EXPECT_EQ(backoff_policy(1, 2, true).pause, 8us);
  EXPECT_EQ(backoff_policy(2, 2, true).pause, 0us);  // The kernel needs a core as well.
  EXPECT_EQ(backoff_policy(1, 1, true).pause, 0us);
}

TEST_F(BackoffTest, LooksThatAreSystemCallsAreFewer) {
  EXPECT_EQ(backoff_policy(1, 1, false).pauses, 1U);
  EXPECT_EQ(backoff_policy(2, 4, true).pauses, 1U);  // It looks at shared memory, too.
  BackoffPolicy policy = backoff_policy(1, 4, true);
  policy.foreground = policy.pause;
  Backoff tested = backoff(policy);
  EXPECT_EQ(wait(tested, 8us), 8100ns);  // It reads the clock after each look.
}

TEST_F(BackoffTest, RanksThatShareCoresAreOftenLateAndGoOnYielding) {
  Backoff tested = backoff(backoff_policy(4, 2, false));
  yield_takes = 3ms;
  for (std::uint64_t i = 1; i <= 10; ++i) {
    EXPECT_GE(wait(tested, 200us), 3ms);
    EXPECT_EQ(tested.yields(), i);
  }
}

}  // namespace
}  // namespace lightcc::backoff_test
