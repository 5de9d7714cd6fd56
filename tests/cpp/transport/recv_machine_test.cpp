// The receiving end of a channel: pieces that the test brings by hand find what is posted,
// whichever comes first, and whoever sends what cannot be is named.
#include "lightcc/transport/channel/recv_machine.hpp"

#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "transport/transport_test_support.hpp"

namespace lightcc::recv_machine_test {
namespace {

using namespace transport_test;  // NOLINT: the tests' own helpers

constexpr Cut kCut{.piece_bytes = 64, .ends_short = false};
constexpr int kPeer = 3;

ChannelHello make_hello(std::uint16_t index = 0, std::uint16_t count = 1) {
  return {.world_id = 1, .attempt = 7, .channel = {}, .index = index, .count = count};
}

/// Lends what the test puts there.
class Link final : public RecvMachine {
 public:
  explicit Link(bool has_hello = true, bool can_receive_to_sink = false)
      : RecvMachine(kPeer), can_take_(can_receive_to_sink) {
    if (has_hello) {
      take_hello(make_hello(), kCut);
    }
  }
  bool can_receive_to_sink() const override { return can_take_; }

  void connect(const ChannelHello& hello) { take_hello(hello, kCut); }
  bool begin(RequestId message, std::uint64_t offset, std::uint64_t total) {
    return begin_piece(message, offset, total) != nullptr;
  }
  bool finish(RequestId message) { return finish_piece(message); }
  void count(RequestId message) { count_pieces(message); }
  void break_down(const Status& why) { fail(why); }
  const Posted& posted(RequestId message) const { return receives()[message]; }
  bool broken() const { return is_over(); }

  std::optional<Fragment> to_lend;
  Status error_of_lend;
  std::size_t taken_back = 0;
  int closed = 0;
  int posts = 0;

 private:
  void on_post() override { ++posts; }
  void close() override { ++closed; }
  bool lend(RequestId /*request*/, Fragment* fragment) override {
    if (!error_of_lend.ok()) {
      fail(error_of_lend);
    }
    if (to_lend.has_value()) {
      *fragment = *to_lend;
    }
    return to_lend.has_value();
  }
  void take_back(std::size_t bytes) override { taken_back += bytes; }

  const bool can_take_;
};

void expect_broken(Link& link, const std::string& message) {
  const Status status = link.irecv({}).status();
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(status.message(), message);
  EXPECT_EQ(status.rank(), kPeer);
  EXPECT_TRUE(link.broken());
  EXPECT_GE(link.closed, 1);
}

// All of a first message, whose bytes lie in `memory`.
Fragment lent_by(Link& link, const Bytes& memory) {
  (void)must(link.irecv_fragments(memory.size()));
  link.to_lend = Fragment{.offset = 0, .bytes = memory};
  return must(link.next_fragment(0)).value();
}

TEST(RecvMachineTest, a_piece_that_nobody_waits_for_is_left_where_it_is) {
  Link link;
  EXPECT_FALSE(link.begin(0, 0, 100));
  EXPECT_FALSE(link.broken());
  Bytes into(100);
  const RequestId request = must(link.irecv(into));
  EXPECT_EQ(link.posts, 1);
  EXPECT_TRUE(link.begin(0, 64, 100)) << "pieces may come in any order";
  EXPECT_FALSE(link.finish(0));
  EXPECT_FALSE(must(link.test(request)));
  EXPECT_TRUE(link.begin(0, 0, 100));
  EXPECT_TRUE(link.finish(0));
  EXPECT_TRUE(must(link.test(request)));
}

TEST(RecvMachineTest, receives_keep_what_they_were_posted_for) {
  Link link(true, true);
  Bytes into(5);
  const FragmentSink sink{[](void*, const Fragment&) {}, nullptr};
  (void)must(link.irecv(into));
  (void)must(link.irecv_fragments(6));
  (void)must(link.irecv_to_sink(7, sink));
  EXPECT_EQ(link.posted(0).into.data(), into.data());
  EXPECT_EQ(link.posted(0).total, 5U);
  EXPECT_TRUE(link.posted(1).fragments);
  EXPECT_EQ(link.posted(1).total, 6U);
  EXPECT_EQ(link.posted(2).sink.take, sink.take);
  EXPECT_EQ(link.posted(2).total, 7U);
  EXPECT_EQ(Link().irecv_to_sink(7, sink).status().code(), ErrorCode::kUnimplemented);
}

TEST(RecvMachineTest, a_later_message_may_be_done_before_an_earlier_one) {
  Link link;
  (void)must(link.irecv({}));
  (void)must(link.irecv({}));
  EXPECT_TRUE(link.begin(1, 0, 0));
  link.finish(1);
  EXPECT_TRUE(must(link.test(1)));
  EXPECT_FALSE(must(link.test(0)));
}

TEST(RecvMachineTest, pieces_that_are_asked_for_are_counted_with_the_first) {
  Link link;
  (void)must(link.irecv_fragments(100));
  EXPECT_FALSE(must(link.test(0)));
  link.count(0);
  EXPECT_FALSE(link.finish(0));
  EXPECT_TRUE(link.finish(0));
}

TEST(RecvMachineTest, a_message_of_another_length_names_both_and_the_rank) {
  Link link;
  (void)must(link.irecv_fragments(16));
  EXPECT_FALSE(link.begin(0, 0, 8));
  expect_broken(link, "rank 3 sent message 0 of 8 bytes where 16 were expected");
}

TEST(RecvMachineTest, a_piece_that_comes_twice_is_the_peers_fault) {
  Link link;
  (void)must(link.irecv_fragments(100));
  EXPECT_TRUE(link.begin(0, 64, 100));
  EXPECT_FALSE(link.begin(0, 64, 100));
  expect_broken(link, "rank 3 sent byte 64 of message 0 twice");
}

TEST(RecvMachineTest, a_message_that_was_complete_is_not_taken_again) {
  Link link;
  (void)must(link.irecv({}));
  EXPECT_TRUE(link.begin(0, 0, 0));
  EXPECT_TRUE(link.finish(0));
  EXPECT_FALSE(link.begin(0, 0, 0));
  expect_broken(link, "rank 3 sent byte 0 of message 0 twice");
  EXPECT_TRUE(must(link.test(0))) << "what arrived stays arrived";
}

TEST(RecvMachineTest, after_cancel_every_call_fails_also_of_what_was_done) {
  Link link;
  (void)must(link.irecv({}));
  link.begin(0, 0, 0);
  link.finish(0);
  link.cancel();
  const Status status = link.test(0).status();
  EXPECT_EQ(status.code(), ErrorCode::kShutDown);
  EXPECT_EQ(status.message(), "the channel from rank 3 was cancelled");
  EXPECT_EQ(link.next_fragment(0).status().code(), ErrorCode::kShutDown);
  EXPECT_EQ(link.irecv_fragments(1).status().code(), ErrorCode::kShutDown);
}

TEST(RecvMachineTest, fragments_are_lent_one_at_a_time) {
  Link link;
  const Bytes memory = pattern(100, 1);
  (void)must(link.irecv_fragments(100));
  EXPECT_FALSE(must(link.next_fragment(0)).has_value());
  link.to_lend = Fragment{.offset = 64, .bytes = memory};
  const Fragment fragment = must(link.next_fragment(0)).value();
  EXPECT_EQ(fragment.offset, 64U);
  EXPECT_EQ(fragment.bytes.data(), memory.data());
  EXPECT_EQ(link.next_fragment(0).status().message(),
            "next_fragment() before release() of the last one");
  link.release(fragment);
  EXPECT_EQ(link.taken_back, 100U);
  link.release(fragment);
  EXPECT_EQ(link.taken_back, 100U) << "once";
  EXPECT_TRUE(must(link.next_fragment(0)).has_value());
}

TEST(RecvMachineTest, fragments_of_what_was_not_posted_for_them_are_the_callers_fault) {
  Link link;
  Bytes into(8);
  (void)must(link.irecv(into));
  EXPECT_EQ(link.next_fragment(0).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(link.next_fragment(1).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(link.broken());
}

TEST(RecvMachineTest, releasing_something_else_ends_the_channel) {
  Link link;
  const Bytes memory = pattern(100, 1);
  const Fragment fragment = lent_by(link, memory);
  link.release({.offset = 0, .bytes = fragment.bytes.first(64)});
  EXPECT_EQ(link.test(0).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(link.taken_back, 0U);
}

TEST(RecvMachineTest, a_fragment_that_is_held_through_a_failure_is_not_taken_back) {
  Link link;
  const Bytes memory = pattern(100, 1);
  const Fragment fragment = lent_by(link, memory);
  link.break_down(make_error(ErrorCode::kPeerFailed, "gone"));
  link.release(fragment);
  EXPECT_EQ(link.taken_back, 0U);
}

TEST(RecvMachineTest, looking_for_a_fragment_may_find_the_end) {
  Link link;
  (void)must(link.irecv_fragments(100));
  link.error_of_lend = make_error(ErrorCode::kPeerFailed, "the end");
  EXPECT_EQ(link.next_fragment(0).status().message(), "the end");
}

TEST(RecvMachineTest, connections_belong_to_the_first_sender_that_was_heard) {
  Link link(false);
  EXPECT_EQ(link.attempt(), 0U);
  EXPECT_FALSE(link.waits_for_sender()) << "nothing is posted";
  (void)must(link.irecv({}));
  EXPECT_TRUE(link.waits_for_sender());
  EXPECT_TRUE(link.lacks(make_hello(1, 2)));
  link.connect(make_hello(1, 2));
  EXPECT_EQ(link.attempt(), 7U);
  EXPECT_TRUE(link.waits_for_sender());
  EXPECT_FALSE(link.lacks(make_hello(1, 2))) << "that one stands";
  EXPECT_TRUE(link.lacks(make_hello(0, 2)));
  ChannelHello other = make_hello(0, 2);
  other.attempt = 8;
  EXPECT_FALSE(link.lacks(other)) << "a newer sender";
  other = make_hello(0, 2);
  other.piece_bytes = 64;
  EXPECT_FALSE(link.lacks(other)) << "another cut";
  EXPECT_FALSE(link.lacks(make_hello(0, 3))) << "another number of connections";
  link.connect(make_hello(0, 2));
  EXPECT_FALSE(link.waits_for_sender());
  link.cancel();
  EXPECT_FALSE(link.lacks(make_hello(0, 2)));
}

TEST(RecvMachineTest, tells_when_it_is_destroyed) {
  int destroyed = 0;
  {
    Link link;
    link.set_on_destroyed([&] { ++destroyed; });
  }
  EXPECT_EQ(destroyed, 1);
}

}  // namespace
}  // namespace lightcc::recv_machine_test
