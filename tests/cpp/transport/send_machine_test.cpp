// The sending end of a channel, over connections that the test moves by hand.
#include "lightcc/transport/channel/send_machine.hpp"

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "transport/transport_test_support.hpp"

namespace lightcc::send_machine_test {
namespace {

using namespace transport_test;  // NOLINT: the tests' own helpers

constexpr Cut kCut{.piece_bytes = 64, .ends_short = true};
constexpr int kPeer = 3;

/// Takes the pieces for which there is room.
class Link final : public SendMachine {
 public:
  explicit Link(std::size_t room = 1000) : SendMachine(kPeer, kCut), room_(room) {}

  std::deque<Piece>& taken() { return taken_; }
  std::size_t queued() const { return outstanding(); }
  int closed() const { return closed_; }
  bool finish(std::size_t index) {
    const RequestId message = taken_[index].message;
    taken_.erase(taken_.begin() + static_cast<std::ptrdiff_t>(index));
    return finish_piece(message);
  }
  void make_room(std::size_t room) {
    room_ += room;
    take();
  }
  void break_down(const Status& why) { fail(why); }
  Status error_of_next_post;

 private:
  void on_post() override {
    if (!error_of_next_post.ok()) {
      fail(error_of_next_post);
      return;
    }
    take();
  }
  void close() override { ++closed_; }
  void take() {
    for (; room_ > 0 && has_piece(); --room_) {
      taken_.push_back(next_piece());
      take_piece(taken_.back());
    }
  }

  std::size_t room_;
  std::deque<Piece> taken_;
  int closed_ = 0;
};

TEST(SendMachineTest, messages_are_cut_in_order_straight_out_of_the_callers_memory) {
  const Bytes first = pattern(130, 1);
  const Bytes second = pattern(64, 2);
  Link link;
  EXPECT_EQ(must(link.isend(first)), 0U);
  EXPECT_EQ(must(link.isend({})), 1U);
  EXPECT_EQ(must(link.isend(second)), 2U);
  const std::vector<std::pair<RequestId, std::size_t>> expected = {
      {0, 64}, {0, 64}, {0, 2}, {1, 0}, {2, 64}, {2, 0}};
  ASSERT_EQ(link.taken().size(), expected.size());
  const std::byte* at = first.data();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& piece = link.taken()[i];
    EXPECT_EQ(piece.message, expected[i].first);
    EXPECT_EQ(piece.bytes.size(), expected[i].second);
    EXPECT_EQ(piece.whole.data() + piece.offset, piece.bytes.data());
    if (piece.message == 0) {
      EXPECT_EQ(piece.bytes.data(), at);
      at += piece.bytes.size();
    }
  }
}

TEST(SendMachineTest, what_has_no_room_waits_and_goes_on_where_it_stopped) {
  const Bytes message = pattern(200, 1);
  Link link(1);
  (void)must(link.isend(message));
  (void)must(link.isend(message));
  EXPECT_EQ(link.taken().size(), 1U);
  link.make_room(4);
  ASSERT_EQ(link.taken().size(), 5U);
  EXPECT_EQ(link.taken()[3].offset, 192U);
  EXPECT_EQ(link.taken()[4].message, 1U);
  EXPECT_EQ(link.queued(), 2U);
}

TEST(SendMachineTest, a_message_is_done_with_all_its_pieces_and_after_those_before_it) {
  const Bytes message = pattern(100, 1);
  Link link;
  const RequestId first = must(link.isend(message));
  const RequestId second = must(link.isend({}));
  EXPECT_FALSE(link.finish(2));
  EXPECT_FALSE(must(link.test(second))) << "all of it has gone, but not what is before it";
  EXPECT_FALSE(link.finish(1));
  EXPECT_FALSE(must(link.test(first)));
  EXPECT_TRUE(link.finish(0));
  EXPECT_TRUE(must(link.test(first)));
  EXPECT_TRUE(must(link.test(second)));
  EXPECT_EQ(link.queued(), 0U);
}

TEST(SendMachineTest, a_request_that_was_never_made_is_the_callers_fault) {
  Link link;
  EXPECT_EQ(link.test(0).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(link.closed(), 0);
}

TEST(SendMachineTest, the_first_failure_closes_and_names_the_peer_and_what_was_done_stays_done) {
  Link link;
  const RequestId done = must(link.isend({}));
  link.finish(0);
  const RequestId lost = must(link.isend({}));
  link.break_down(make_error(ErrorCode::kPeerFailed, "gone"));
  link.break_down(make_error(ErrorCode::kTimeout, "late"));
  EXPECT_GE(link.closed(), 1);
  EXPECT_TRUE(must(link.test(done)));
  for (const Status& status : {link.test(lost).status(), link.isend({}).status()}) {
    EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
    EXPECT_EQ(status.message(), "gone");
    EXPECT_EQ(status.rank(), kPeer);
  }
  EXPECT_EQ(link.queued(), 0U);
}

TEST(SendMachineTest, what_the_operating_system_refuses_is_nobodys_fault) {
  Link link;
  link.error_of_next_post = make_error(ErrorCode::kSystem, "no memory");
  const Status status = link.isend({}).status();
  EXPECT_EQ(status.code(), ErrorCode::kSystem);
  EXPECT_EQ(status.rank(), -1);
}

TEST(SendMachineTest, after_cancel_every_call_fails_also_of_what_was_done) {
  Link link;
  const RequestId done = must(link.isend({}));
  link.finish(0);
  link.cancel();
  EXPECT_EQ(link.closed(), 1);
  EXPECT_EQ(link.test(done).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(link.test(done).status().message(), "the channel to rank 3 was cancelled");
  EXPECT_EQ(link.isend({}).status().code(), ErrorCode::kShutDown);
}

}  // namespace
}  // namespace lightcc::send_machine_test
