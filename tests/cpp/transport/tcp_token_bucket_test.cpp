// The rate limit's arithmetic, in virtual time.
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "lightcc/transport/tcp/token_bucket.hpp"

namespace lightcc::tcp_token_bucket_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(TcpTokenBucketTest, starts_full_and_never_holds_more_than_the_burst) {
  TokenBucket bucket(100'000'000, TimePoint());
  EXPECT_EQ(bucket.burst_bytes(), 1'000'000);
  EXPECT_EQ(bucket.available(TimePoint()), 1'000'000);
  EXPECT_EQ(bucket.available(TimePoint(std::chrono::hours(1000))), 1'000'000);
}

TEST(TcpTokenBucketTest, small_steps_lose_nothing) {
  // 3 bytes per second, asked every microsecond: no step earns a whole byte.
  TokenBucket bucket(3, TimePoint());
  bucket.spend(static_cast<std::size_t>(bucket.burst_bytes()));
  TimePoint now;
  for (int i = 0; i < 1'000'000; ++i) {
    now += std::chrono::microseconds(1);
    (void)bucket.available(now);
  }
  EXPECT_EQ(bucket.available(now), 3);
}

TEST(TcpTokenBucketTest, time_until_is_when_the_tokens_are_there) {
  TokenBucket bucket(1'000'000, TimePoint());
  bucket.spend(static_cast<std::size_t>(bucket.available(TimePoint())));
  const Duration wait = bucket.time_until(1000);
  EXPECT_EQ(wait, milliseconds(1));
  EXPECT_EQ(bucket.available(TimePoint(wait - nanoseconds(1))), 999);
  EXPECT_EQ(bucket.available(TimePoint(wait)), 1000);
}

TEST(TcpTokenBucketTest, the_largest_rate_does_not_overflow) {
  TokenBucket bucket(1'000'000'000'000'000, TimePoint());
  bucket.spend(static_cast<std::size_t>(bucket.available(TimePoint())));
  EXPECT_EQ(bucket.available(TimePoint()), 0);
  EXPECT_GT(bucket.time_until(1 << 20), Duration(0));
  EXPECT_EQ(bucket.available(TimePoint(std::chrono::hours(24 * 365))), bucket.burst_bytes());
}

TEST(TcpTokenBucketTest, no_rate_is_no_limit) {
  TokenBucket bucket(0, TimePoint());
  EXPECT_TRUE(bucket.unlimited());
  bucket.spend(1 << 30);
  EXPECT_EQ(bucket.available(TimePoint()), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(bucket.time_until(1), Duration(0));
}

}  // namespace
}  // namespace lightcc::tcp_token_bucket_test
