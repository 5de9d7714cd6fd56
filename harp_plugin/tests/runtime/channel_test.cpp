#include "runtime/channel.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.hpp"
#include "protocol/types.hpp"
#include "sync/doorbells.hpp"

namespace harp::channel_test {
namespace {

constexpr std::size_t kBell = 70;

struct Ends {
  Doorbells bells;
  Channel channel{bells, kBell};
};

TEST(Channel, begins_unconnected_and_without_posts) {
  Ends ends;
  EXPECT_EQ(ends.channel.life(), Channel::Life::kConnecting);
  EXPECT_EQ(ends.channel.next_post(), nullptr);
  EXPECT_EQ(ends.channel.bell(), kBell);
  EXPECT_FALSE(ends.bells.any());
  ends.channel.open();
  EXPECT_EQ(ends.channel.life(), Channel::Life::kOpen);
}

TEST(Channel, the_stack_sees_posts_in_order_as_they_were_made) {
  Ends ends;
  std::vector<std::byte> buffer(100);
  const auto send = ends.channel.send(std::span(buffer).first(7), 42);
  const auto receive = ends.channel.receive(buffer);
  ASSERT_TRUE(send && receive);
  EXPECT_NE(*send, *receive);
  std::vector<std::size_t> rung;
  ends.bells.collect([&](std::size_t bell) { rung.push_back(bell); });
  EXPECT_EQ(rung, std::vector{kBell});

  const Channel::Post* post = ends.channel.next_post();
  ASSERT_NE(post, nullptr);
  EXPECT_TRUE(post->is_send);
  EXPECT_EQ(post->request, *send);
  EXPECT_EQ(post->tag, 42);
  EXPECT_EQ(post->data, buffer.data());
  EXPECT_EQ(post->bytes, 7U);
  ends.channel.pop_post();
  post = ends.channel.next_post();
  ASSERT_NE(post, nullptr);
  EXPECT_FALSE(post->is_send);
  EXPECT_EQ(post->request, *receive);
  EXPECT_EQ(post->data, buffer.data());
  EXPECT_EQ(post->bytes, 100U);
  ends.channel.pop_post();
  EXPECT_EQ(ends.channel.next_post(), nullptr);
}

TEST(Channel, a_request_is_complete_when_the_stack_says_so_and_only_once) {
  Ends ends;
  const auto request = ends.channel.receive({});
  ASSERT_TRUE(request);
  EXPECT_FALSE(ends.channel.test(*request));
  EXPECT_FALSE(ends.channel.test(*request));
  ends.channel.complete(*request, {.tag = 9, .bytes = 1234});
  const auto completion = ends.channel.test(*request);
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->error, SessionError::kNone);
  EXPECT_EQ(completion->tag, 9);
  EXPECT_EQ(completion->bytes, 1234U);
  EXPECT_FALSE(ends.channel.test(*request)) << "the answer was given";
}

TEST(Channel, ids_of_outstanding_requests_are_all_different) {
  Ends ends;
  Rng rng(1);
  std::set<RequestId> outstanding;
  for (int step = 0; step < 10'000; ++step) {
    if (rng.chance(0.55)) {
      const auto request = ends.channel.send({}, 0);
      ASSERT_EQ(request.has_value(), outstanding.size() < Channel::kRequests);
      if (request) {
        ASSERT_LT(*request, Channel::kRequests);
        ASSERT_TRUE(outstanding.insert(*request).second);
        ends.channel.pop_post();
      }
    } else if (!outstanding.empty()) {
      const RequestId request = *std::next(
          outstanding.begin(), static_cast<std::ptrdiff_t>(rng.below(outstanding.size())));
      ends.channel.complete(request, {.bytes = static_cast<std::size_t>(step)});
      const auto completion = ends.channel.test(request);
      ASSERT_TRUE(completion);
      ASSERT_EQ(completion->bytes, static_cast<std::size_t>(step));
      outstanding.erase(request);
    }
  }
}

TEST(Channel, a_full_channel_takes_nothing_and_one_answer_makes_room_for_one) {
  Ends ends;
  for (std::size_t i = 0; i < Channel::kRequests; ++i) {
    ASSERT_TRUE(i % 2 == 0 ? ends.channel.send({}, 0) : ends.channel.receive({})) << i;
  }
  EXPECT_FALSE(ends.channel.send({}, 0));
  EXPECT_FALSE(ends.channel.receive({}));
  const RequestId first = ends.channel.next_post()->request;
  ends.channel.pop_post();
  EXPECT_FALSE(ends.channel.send({}, 0)) << "taken is not complete";
  ends.channel.complete(first, {});
  EXPECT_FALSE(ends.channel.send({}, 0)) << "complete, and nobody has asked";
  ASSERT_TRUE(ends.channel.test(first));
  EXPECT_TRUE(ends.channel.send({}, 0));
  EXPECT_FALSE(ends.channel.send({}, 0));
}

TEST(Channel, the_end_completes_what_was_never_taken_with_its_error) {
  Ends ends;
  ends.channel.open();
  const auto completed = ends.channel.send({}, 0);
  const auto taken = ends.channel.receive({});
  const auto never_taken = ends.channel.receive({});
  ASSERT_TRUE(completed && taken && never_taken);
  ends.channel.pop_post();
  ends.channel.pop_post();
  ends.channel.complete(*completed, {.bytes = 5});
  ends.channel.complete(*taken, {.error = SessionError::kNoProgress});
  EXPECT_FALSE(ends.channel.test(*never_taken));
  ends.channel.end(SessionError::kPeerTimeout);
  EXPECT_EQ(ends.channel.life(), Channel::Life::kEnded);
  EXPECT_EQ(ends.channel.end_error(), SessionError::kPeerTimeout);
  const auto first = ends.channel.test(*completed);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->error, SessionError::kNone) << "what was complete before stays so";
  EXPECT_EQ(first->bytes, 5U);
  const auto second = ends.channel.test(*taken);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->error, SessionError::kNoProgress);
  const auto third = ends.channel.test(*never_taken);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->error, SessionError::kPeerTimeout);
}

TEST(Channel, takes_nothing_after_its_end) {
  Ends ends;
  ends.channel.end(SessionError::kNone);
  EXPECT_FALSE(ends.channel.send({}, 0));
  EXPECT_FALSE(ends.channel.receive({}));
  EXPECT_FALSE(ends.bells.any());
  EXPECT_EQ(ends.channel.end_error(), SessionError::kPeerClosed) << "no error of ours: theirs";
}

TEST(Channel, two_threads_pass_requests_and_answers_without_loss) {
  constexpr std::size_t kCount = 100'000;
  Ends ends;
  std::thread stack([&] {
    for (std::size_t taken = 0; taken < kCount;) {
      const Channel::Post* const post = ends.channel.next_post();
      if (post == nullptr) {
        std::this_thread::yield();
        continue;
      }
      const RequestId request = post->request;
      const std::size_t bytes = post->bytes;
      ends.channel.pop_post();
      ends.channel.complete(request, {.tag = 1, .bytes = bytes});
      ++taken;
    }
    ends.channel.end(SessionError::kPeerTimeout);
  });
  // The lengths are the numbers of the requests; no byte of the buffer is touched by a channel.
  const std::vector<std::byte> buffer(kCount);
  std::vector<std::optional<std::size_t>> posted(Channel::kRequests);
  std::size_t next = 0;
  std::size_t answered = 0;
  std::size_t wrong = 0;
  while (answered < kCount) {
    while (next < kCount) {
      const auto request = ends.channel.send(std::span(buffer).first(next), 0);
      if (!request) {
        break;
      }
      posted[*request] = next++;
    }
    for (RequestId id = 0; id < Channel::kRequests; ++id) {
      const auto completion = posted[id] ? ends.channel.test(id) : std::nullopt;
      if (completion) {
        wrong += completion->error != SessionError::kNone || completion->bytes != *posted[id];
        posted[id].reset();
        ++answered;
      }
    }
    std::this_thread::yield();
  }
  stack.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(ends.channel.life(), Channel::Life::kEnded);
}

}  // namespace
}  // namespace harp::channel_test
