// Slow ranks in virtual time: training steps whose ranks take as long as a test says.
#include "lightcc/control/slow_ranks.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/sequencer.hpp"

#include "control/negotiation.hpp"

namespace lightcc::slow_ranks_test {
namespace {

using std::chrono::milliseconds;
using testing::allreduce;
using testing::in_set;
using testing::Negotiation;
using testing::operation;
using testing::with_peer;
using testing::world_of;

using Ranks = std::vector<std::int32_t>;

// One rank asks for one operation, so long after the step's begin.
struct Ask {
  Duration after;
  int rank;
  Signature what;
};

class Training {
 public:
  explicit Training(int size, Duration slow_time = std::chrono::seconds(10))
      : size_(size), n_(options(size, slow_time)) {}

  // All that ranks ask for in a step; then all of them go on at once.
  void step(const std::vector<Ask>& asks) {
    std::multimap<Duration, Ask> in_order;  // Who is named first asks first.
    for (const Ask& ask : asks) {
      in_order.emplace(ask.after, ask);
    }
    const TimePoint begin = n_.now;
    for (const auto& [after, ask] : in_order) {
      n_.now = begin + after;
      n_.expect_ok(n_.ask(ask.rank, ask.what));
      run();
    }
  }
  // Each rank asks for one tensor after its own time.
  void simple_step(const std::vector<int>& own_ms, const std::string& name = "gradient") {
    std::vector<Ask> asks;
    for (int rank = 0; rank < size_; ++rank) {
      asks.push_back({milliseconds(own_ms[static_cast<std::size_t>(rank)]), rank, allreduce(name)});
    }
    step(asks);
  }
  void steps(int count, const std::vector<int>& own_ms) {
    for (int i = 0; i < count; ++i) {
      simple_step(own_ms);
    }
  }

  std::vector<SlowRank> slow() { return n_.sequencer.lateness(n_.now).slow; }
  Ranks slow_ranks() {
    Ranks ranks;
    for (const SlowRank& one : slow()) {
      ranks.push_back(one.rank);
    }
    return ranks;
  }
  Negotiation& negotiation() { return n_; }

 private:
  static SequencerOptions options(int size, Duration slow_time) {
    SequencerOptions options = world_of(size);
    options.fusion = FusionRule::kNone;
    options.slow_time = slow_time;
    return options;
  }
  void run() {
    for (const Command& command : n_.sequencer.take_commands(n_.now)) {
      if (const auto* execute = std::get_if<Execute>(&command)) {
        n_.sequencer.on_bucket_done(execute->process_set, execute->lane, n_.now);
      }
    }
  }

  int size_;
  Negotiation n_;
};

TEST(SlowRanks, a_rank_that_takes_three_times_as_long_is_found_after_the_sustained_time) {
  Training training(4);
  training.steps(30, {100, 100, 300, 100});
  EXPECT_EQ(training.slow_ranks(), Ranks{});  // 9 s.
  training.steps(20, {100, 100, 300, 100});
  const std::vector<SlowRank> slow = training.slow();
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].rank, 2);
  EXPECT_NEAR(slow[0].factor, 3, 0.01);
  EXPECT_GT(slow[0].slow_s, 0);
}

TEST(SlowRanks, a_rank_below_the_factor_is_not_slow) {
  Training training(4);
  training.steps(200, {100, 100, 190, 100});
  EXPECT_EQ(training.slow_ranks(), Ranks{});
}

TEST(SlowRanks, it_is_reported_once_and_again_when_it_is_over) {
  Training training(2);
  training.steps(100, {100, 300});
  std::vector<SlowChange> changes = training.negotiation().sequencer.take_slow_changes();
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].rank, 1);
  EXPECT_NEAR(changes[0].factor, 3, 0.01);
  EXPECT_FALSE(changes[0].has_ended);
  training.steps(100, {100, 300});
  EXPECT_TRUE(training.negotiation().sequencer.take_slow_changes().empty());
  training.steps(200, {100, 100});
  changes = training.negotiation().sequencer.take_slow_changes();
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].rank, 1);
  EXPECT_TRUE(changes[0].has_ended);
  EXPECT_EQ(training.slow_ranks(), Ranks{});
}

TEST(SlowRanks, long_hiccups_now_and_then_do_not_count) {
  Training training(4);
  for (int i = 0; i < 20; ++i) {
    training.simple_step({60000, 100, 100, 100});  // Rank 0 writes a checkpoint.
    training.steps(60, {100, 100, 100, 100});
  }
  EXPECT_EQ(training.slow_ranks(), Ranks{});
}

TEST(SlowRanks, a_slow_start_does_not_count) {
  Training training(4);
  for (const int compiles_ms : {30000, 20000, 5000, 1000, 500}) {
    training.simple_step({100, 100, compiles_ms, 100});
  }
  training.steps(200, {100, 100, 100, 100});
  EXPECT_TRUE(training.negotiation().sequencer.take_slow_changes().empty());
}

TEST(SlowRanks, ranks_that_take_turns_are_not_slow) {
  Training training(3);
  for (int i = 0; i < 300; ++i) {
    std::vector<int> own(3, 100);
    own[static_cast<std::size_t>(i) % 3] = 300;
    training.simple_step(own);
  }
  EXPECT_EQ(training.slow_ranks(), Ranks{});
}

TEST(SlowRanks, all_are_equally_slow_and_so_nobody_is) {
  Training training(4);
  training.steps(100, {100, 100, 100, 100});
  training.steps(100, {900, 900, 900, 900});
  EXPECT_EQ(training.slow_ranks(), Ranks{});
  training.steps(100, {100, 900, 900, 900});  // Who is fast blames nobody.
  EXPECT_EQ(training.slow_ranks(), Ranks{});
}

TEST(SlowRanks, two_slow_ones_do_not_hide_each_other) {
  Training training(5);
  training.steps(100, {100, 400, 100, 300, 100});
  const std::vector<SlowRank> slow = training.slow();
  ASSERT_EQ(slow.size(), 2U);
  EXPECT_EQ(slow[0].rank, 1);
  EXPECT_NEAR(slow[0].factor, 4, 0.01);
  EXPECT_EQ(slow[1].rank, 3);
  EXPECT_NEAR(slow[1].factor, 3, 0.01);
}

// The backward pass overlaps: a rank that is behind asks for each gradient late, but the others
// wait for it only once.
TEST(SlowRanks, who_is_behind_in_many_operations_of_a_step_is_behind_once) {
  for (const int behind_ms : {90, 350}) {  // Less than, and more than, from gradient to gradient.
    Training training(4);
    for (int i = 0; i < 100; ++i) {
      std::vector<Ask> asks;
      for (int rank = 0; rank < 4; ++rank) {
        for (int gradient = 0; gradient < 20; ++gradient) {
          const Duration after = milliseconds(100 * gradient + 100 + (rank == 1 ? behind_ms : 0));
          asks.push_back({after, rank, allreduce("gradient." + std::to_string(gradient))});
        }
      }
      training.step(asks);
    }
    EXPECT_EQ(training.slow_ranks(), Ranks{}) << behind_ms;
  }
}

TEST(SlowRanks, a_slow_rank_is_found_by_the_end_of_its_gradients) {
  Training training(4);
  for (int i = 0; i < 50; ++i) {
    std::vector<Ask> asks;
    for (int rank = 0; rank < 4; ++rank) {
      for (int gradient = 0; gradient < 10; ++gradient) {
        const Duration after = milliseconds((gradient + 1) * (rank == 3 ? 50 : 20));
        asks.push_back({after, rank, allreduce("gradient." + std::to_string(gradient))});
      }
    }
    training.step(asks);
  }
  const std::vector<SlowRank> slow = training.slow();
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].rank, 3);
  EXPECT_NEAR(slow[0].factor, 2.5, 0.01);
}

TEST(SlowRanks, what_follows_in_the_same_step_without_delay_hides_nothing) {
  Training training(2);
  for (int i = 0; i < 80; ++i) {
    training.simple_step({100, 300}, "gradient");
    training.simple_step({0, 0}, "loss");
  }
  EXPECT_EQ(training.slow_ranks(), Ranks{1});
}

TEST(SlowRanks, operations_with_automatic_names_repeat_by_what_they_are) {
  Training training(2);
  for (int i = 0; i < 80; ++i) {
    std::vector<Ask> asks;
    for (int rank = 0; rank < 2; ++rank) {
      Signature what = allreduce("allreduce.noname." + std::to_string(i));
      what.is_automatic = true;
      asks.push_back({milliseconds(rank == 0 ? 300 : 100), rank, what});
    }
    training.step(asks);
  }
  EXPECT_EQ(training.slow_ranks(), Ranks{0});
}

TEST(SlowRanks, a_process_set_is_looked_at_by_itself) {
  Training training(4);
  Negotiation& n = training.negotiation();
  const std::uint32_t pair = n.add_set({1, 3});
  for (int i = 0; i < 60; ++i) {
    training.step({{milliseconds(100), 1, in_set(allreduce("a"), pair)},
                   {milliseconds(300), 3, in_set(allreduce("a"), pair)}});
  }
  EXPECT_EQ(training.slow_ranks(), Ranks{3});
  n.remove_set(pair);
  n.one<RemoveProcessSet>();
  EXPECT_EQ(training.slow_ranks(), Ranks{});
}

TEST(SlowRanks, a_transfer_may_wait_for_its_peer) {
  Training training(2);
  for (int i = 0; i < 100; ++i) {
    training.step({{milliseconds(100), 0, with_peer(operation(OpType::kSend, "message", {4}), 1)},
                   {milliseconds(400), 1, with_peer(operation(OpType::kRecv, "message"), 0)}});
  }
  EXPECT_EQ(training.slow_ranks(), Ranks{});
}

TEST(SlowRanks, a_rank_that_has_joined_is_not_awaited_and_hides_nobody) {
  Training training(4);
  training.steps(10, {100, 100, 100, 100});
  training.negotiation().expect_ok(training.negotiation().join(0));
  for (int i = 0; i < 60; ++i) {
    training.step({{milliseconds(100), 1, allreduce("gradient")},
                   {milliseconds(300), 2, allreduce("gradient")},
                   {milliseconds(100), 3, allreduce("gradient")}});
  }
  EXPECT_EQ(training.slow_ranks(), Ranks{2});
}

TEST(SlowRanks, steps_that_are_shorter_than_reports_travel_blame_nobody) {
  Training training(4);
  training.steps(20000, {1, 1, 9, 1});
  EXPECT_EQ(training.slow_ranks(), Ranks{});
}

TEST(SlowRanks, of_ranks_that_a_leader_reports_for_the_last_one_alone_is_sure) {
  SlowRanks ranks(4, std::chrono::seconds(10));
  TimePoint now{};
  for (int i = 0; i < 1000; ++i) {
    now += milliseconds(10);
    ranks.on_first_report(0, 7, now);
    const Ranks early{0, 1};
    ranks.on_reports(0, early, now);
    now += milliseconds(15);
    const Ranks late{2, 3};  // By one report: rank 3 was the last.
    ranks.on_reports(0, late, now);
    ranks.on_complete(0);
  }
  const std::vector<SlowRank> slow = ranks.found(now);
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].rank, 3);
}

TEST(SlowRanks, without_a_time_it_is_off) {
  Training off(2, Duration::zero());
  off.steps(100, {100, 900});
  EXPECT_EQ(off.slow_ranks(), Ranks{});
}

}  // namespace
}  // namespace lightcc::slow_ranks_test
