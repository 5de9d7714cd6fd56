#include "protocol/send_credit.hpp"

#include <gtest/gtest.h>

namespace harp::send_credit_test {
namespace {

constexpr Psn kPsn = 0xfffffffd;
constexpr MsgSeq kMsg = 0xffffffff;

TEST(SendCredit, packets_of_messages_without_a_buffer_are_bounded) {
  SendCredit credit(kMsg, 4, 8);
  EXPECT_TRUE(credit.permits(kMsg, kPsn, true));
  credit.on_message_started(kMsg, kPsn);
  EXPECT_TRUE(credit.permits(kMsg, kPsn + 3, false));
  EXPECT_FALSE(credit.permits(kMsg, kPsn + 4, false));
  EXPECT_FALSE(credit.permits(kMsg + 1, kPsn + 4, true));
}

TEST(SendCredit, a_posted_receive_lifts_the_bound_for_its_message_and_moves_it_for_the_next) {
  SendCredit credit(kMsg, 4, 8);
  credit.on_message_started(kMsg, kPsn);
  EXPECT_TRUE(credit.on_ack(kMsg + 1));
  EXPECT_FALSE(credit.on_ack(kMsg + 1)) << "no news";
  EXPECT_FALSE(credit.on_ack(kMsg)) << "old news";
  EXPECT_TRUE(credit.permits(kMsg, kPsn + 100, false));
  EXPECT_TRUE(credit.permits(kMsg + 1, kPsn + 101, true));
  credit.on_message_started(kMsg + 1, kPsn + 101);
  EXPECT_TRUE(credit.permits(kMsg + 1, kPsn + 104, false));
  EXPECT_FALSE(credit.permits(kMsg + 1, kPsn + 105, false));
}

}  // namespace
}  // namespace harp::send_credit_test
