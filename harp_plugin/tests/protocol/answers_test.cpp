#include "protocol/answers.hpp"

#include <gtest/gtest.h>

#include "protocol/pipe.hpp"

namespace harp::answers_test {
namespace {

TEST(Answers, the_newest_probe_is_answered_once_on_a_path_that_there_is) {
  Answers answers;
  ControlPacket packet;
  EXPECT_FALSE(answers.any());
  EXPECT_FALSE(answers.take_probe_answer(4, packet));
  answers.on_probe({.path = 1, .tx_time = 10}, Duration::zero());
  answers.on_probe({.path = 6, .tx_time = 11}, milliseconds(1));
  EXPECT_TRUE(answers.any());
  EXPECT_FALSE(answers.any_resets());
  ASSERT_TRUE(answers.take_probe_answer(4, packet));
  EXPECT_EQ(packet.type, PacketType::kProbeAck);
  EXPECT_EQ(packet.path, 2);
  const auto echo = parse_echo(packet.body());
  ASSERT_TRUE(echo);
  EXPECT_EQ(echo->tx_time, 11U);
  EXPECT_EQ(echo->delay, wire_duration(milliseconds(1)));
  EXPECT_FALSE(answers.take_probe_answer(4, packet));
  EXPECT_FALSE(answers.any());
}

TEST(Answers, a_reset_goes_over_every_path_or_answers_on_one) {
  Answers answers;
  ControlPacket packet;
  answers.reset_on_all(SessionError::kNoProgress, 3);
  for (PathIndex path = 0; path < 3; ++path) {
    ASSERT_TRUE(answers.take_reset(3, packet));
    EXPECT_EQ(packet.type, PacketType::kRst);
    EXPECT_EQ(packet.path, path);
    EXPECT_EQ(parse_reset(packet.body()), SessionError::kNoProgress);
  }
  EXPECT_FALSE(answers.take_reset(3, packet));
  answers.reset_on(SessionError::kCancelled, 5);
  answers.reset_on(SessionError::kCancelled, 4);
  EXPECT_TRUE(answers.any_resets());
  ASSERT_TRUE(answers.take_reset(3, packet));
  EXPECT_EQ(packet.path, 1);
  EXPECT_FALSE(answers.take_reset(3, packet));
}

}  // namespace
}  // namespace harp::answers_test
