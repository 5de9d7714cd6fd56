// Messages leave their queue in order, and what was done stays done unless the channel is
// cancelled.
#include "lightcc/transport/channel/message_queue.hpp"

#include <gtest/gtest.h>

namespace lightcc::message_queue_test {
namespace {

struct Message {
  char name = ' ';
  int pieces_left = 0;
};

TEST(MessageQueueTest, messages_are_numbered_in_posting_order_and_found_until_they_are_done) {
  MessageQueue<Message> queue;
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.find(0), nullptr);
  EXPECT_EQ(queue.push({'a', 1}), 0U);
  EXPECT_EQ(queue.push({'b', 2}), 1U);
  EXPECT_EQ(queue.end(), 2U);
  EXPECT_TRUE(queue.finish_piece(0));
  EXPECT_EQ(queue.first(), 1U);
  EXPECT_EQ(queue.find(0), nullptr);
  ASSERT_NE(queue.find(1), nullptr);
  EXPECT_EQ(queue.find(1)->name, 'b');
  EXPECT_EQ(queue[1].name, 'b');
  EXPECT_EQ(queue.find(2), nullptr);
  EXPECT_EQ(queue.push({'c', 1}), 2U);
  EXPECT_EQ(queue[2].name, 'c');
}

TEST(MessageQueueTest, a_message_is_done_with_its_last_piece_and_after_those_before_it) {
  MessageQueue<Message> queue;
  for (const int pieces : {2, 1, 1, 1}) {
    queue.push({'m', pieces});
  }
  EXPECT_FALSE(queue.finish_piece(1));
  EXPECT_FALSE(queue.finish_piece(0));
  EXPECT_FALSE(queue.is_done(1));
  EXPECT_FALSE(queue.test(1, "a message").value());
  EXPECT_TRUE(queue.finish_piece(0));
  EXPECT_TRUE(queue.test(0, "a message").value());
  EXPECT_TRUE(queue.test(1, "a message").value());
  EXPECT_FALSE(queue.test(2, "a message").value());
  EXPECT_EQ(queue.first(), 2U);
}

TEST(MessageQueueTest, a_message_that_was_never_pushed_is_the_callers_fault) {
  MessageQueue<Message> queue;
  queue.push({'a', 1});
  const Status status = queue.test(1, "a send that was never posted").status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "test() of a send that was never posted");
  EXPECT_FALSE(queue.is_over());
}

TEST(MessageQueueTest, the_first_failure_drops_what_is_queued_and_answers_for_it) {
  MessageQueue<Message> queue;
  queue.push({'a', 1});
  queue.push({'b', 1});
  queue.finish_piece(0);
  queue.fail({ErrorCode::kPeerFailed, "gone", 3});
  queue.fail({ErrorCode::kTimeout, "late"});
  EXPECT_TRUE(queue.is_over());
  EXPECT_EQ(queue.error().message(), "gone");
  EXPECT_EQ(queue.error().rank(), 3);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.find(1), nullptr);
  EXPECT_TRUE(queue.test(0, "a message").value()) << "what was done stays done";
  EXPECT_EQ(queue.test(1, "a message").status().message(), "gone");
  EXPECT_EQ(queue.test(2, "a message").status().message(), "gone");
}

TEST(MessageQueueTest, after_forget_done_nothing_is_done) {
  MessageQueue<Message> queue;
  queue.push({'a', 1});
  queue.finish_piece(0);
  queue.fail({ErrorCode::kShutDown, "cancelled"});
  queue.forget_done();
  EXPECT_FALSE(queue.is_done(0));
  EXPECT_EQ(queue.test(0, "a message").status().code(), ErrorCode::kShutDown);
}

}  // namespace
}  // namespace lightcc::message_queue_test
