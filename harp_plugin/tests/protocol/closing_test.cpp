#include "protocol/closing.hpp"

#include <chrono>

#include <gtest/gtest.h>

#include "protocol/pipe.hpp"

namespace harp::closing_test {
namespace {

constexpr Psn kFin = 0xffffffff;  // The wrap is behind it.

Closing make() {
  SessionConfig config;
  config.close_timeout = milliseconds(300);
  config.linger = milliseconds(100);
  config.peer_timeout = milliseconds(1000);
  return Closing(config);
}

TEST(Closing, one_fin_follows_the_last_message) {
  Closing closing = make();
  EXPECT_FALSE(closing.wants_fin(false));
  closing.begin();
  EXPECT_FALSE(closing.wants_fin(true));
  EXPECT_TRUE(closing.wants_fin(false));
  closing.on_fin_made(kFin);
  EXPECT_FALSE(closing.wants_fin(false));
  EXPECT_FALSE(closing.fin_was_acked());
  closing.on_fin_acked();
  EXPECT_TRUE(closing.fin_was_acked());
}

TEST(Closing, a_fin_that_nobody_acknowledges_is_given_up_once_all_data_has_arrived) {
  Closing closing = make();
  closing.begin();
  closing.on_fin_made(kFin);
  EXPECT_FALSE(closing.is_overdue(kFin - 1, at_ms(10'000))) << "data is missing";
  EXPECT_EQ(closing.overdue_at(kFin - 1), kNever);
  EXPECT_FALSE(closing.is_overdue(kFin, at_ms(1000)));
  EXPECT_EQ(closing.overdue_at(kFin), at_ms(1300));
  EXPECT_FALSE(closing.is_overdue(kFin, at_ms(1299)));
  EXPECT_TRUE(closing.is_overdue(kFin, at_ms(1300)));
}

TEST(Closing, the_peer_ends_once_when_everything_before_its_fin_is_there) {
  Closing closing = make();
  EXPECT_FALSE(closing.is_behind_peer_fin(kFin));
  closing.on_peer_fin(kFin, 7);
  EXPECT_FALSE(closing.is_behind_peer_fin(kFin - 1));
  EXPECT_TRUE(closing.is_behind_peer_fin(kFin + 1));
  EXPECT_FALSE(closing.peer_ends_now(kFin));
  EXPECT_FALSE(closing.never_comes(7)) << "what is before may still be under way";
  EXPECT_TRUE(closing.peer_ends_now(kFin + 1));
  EXPECT_FALSE(closing.peer_ends_now(kFin + 1));
  EXPECT_EQ(closing.peer_end(), 7U);
  EXPECT_FALSE(closing.never_comes(6));
  EXPECT_TRUE(closing.never_comes(7));
}

TEST(Closing, it_lingers_as_long_as_the_peer_may_ask) {
  Closing failed = make();
  failed.linger(true, at_ms(0));
  EXPECT_EQ(failed.linger_until(), at_ms(100));
  Closing closing = make();
  closing.linger(false, at_ms(0));
  EXPECT_EQ(closing.linger_until(), at_ms(1000)) << "the peer has not closed";
  closing.shorten(at_ms(200));
  EXPECT_EQ(closing.linger_until(), at_ms(300));
  closing.on_heard(at_ms(250));
  EXPECT_EQ(closing.linger_until(), at_ms(350));
  closing.on_heard(at_ms(990));
  EXPECT_EQ(closing.linger_until(), at_ms(1000)) << "not for ever";
}

}  // namespace
}  // namespace harp::closing_test
