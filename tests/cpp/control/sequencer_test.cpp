// The sequencer alone: reports in, commands out, time by hand.
#include "lightcc/control/sequencer.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "control/negotiation.hpp"

namespace lightcc::sequencer_test {
namespace {

using std::chrono::seconds;
using testing::allreduce;
using testing::in_group;
using testing::in_set;
using testing::Negotiation;
using testing::operation;
using testing::with_peer;
using testing::world_of;

TEST(Sequencer, announces_only_when_the_last_rank_has_asked) {
  Negotiation n(world_of(3));
  n.expect_ok(n.ask(2, allreduce("a")));
  n.expect_ok(n.ask(0, allreduce("a")));
  n.expect_silence();
  EXPECT_TRUE(n.sequencer.has_pending());
  n.expect_ok(n.ask(1, allreduce("a")));
  const AnnouncedTensor tensor = n.run_one();
  EXPECT_EQ(tensor.signature, allreduce("a"));
  EXPECT_FALSE(n.sequencer.has_pending());
  n.expect_silence();
}

TEST(Sequencer, any_order_of_reports_announces_everything_once_and_in_one_sequence) {
  constexpr int kRanks = 4;
  constexpr int kTensors = 12;
  for (unsigned seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    SequencerOptions options = world_of(kRanks);
    options.fusion_threshold_bytes = 64;
    Negotiation n(options);
    std::vector<std::pair<int, int>> reports;
    for (int i = 0; i < kRanks * kTensors; ++i) {
      reports.emplace_back(i / kTensors, i % kTensors);
    }
    std::shuffle(reports.begin(), reports.end(), random);
    std::vector<int> asked(kTensors, 0);
    std::vector<int> announced(kTensors, 0);
    std::uint64_t next = 0;
    const auto take = [&] {
      for (bool any = true; any;) {
        any = false;
        for (const Command& command : n.sequencer.take_commands(n.now)) {
          any = true;
          const auto& execute = std::get<Execute>(command);
          EXPECT_EQ(execute.sequence, next++);
          n.sequencer.on_bucket_done(execute.process_set, execute.lane, n.now);
          for (const AnnouncedTensor& tensor : execute.tensors) {
            const auto index = static_cast<std::size_t>(std::stoi(tensor.signature.value().name));
            EXPECT_EQ(asked[index], kRanks) << "announced before all had asked";
            ++announced[index];
          }
        }
      }
    };
    for (const auto& [rank, tensor] : reports) {
      ++asked[static_cast<std::size_t>(tensor)];
      n.expect_ok(n.ask(rank, allreduce(std::to_string(tensor))));
      if (random() % 3 == 0) {
        take();
      }
    }
    take();
    EXPECT_EQ(announced, std::vector<int>(kTensors, 1));
    EXPECT_FALSE(n.sequencer.has_pending());
  }
}

TEST(Sequencer, a_barrier_is_announced_at_once_and_can_be_repeated) {
  Negotiation n(world_of(2));
  for (int round = 0; round < 3; ++round) {
    n.all_ask(operation(OpType::kBarrier, "barrier"));
    const auto execute = n.one<Execute>();
    ASSERT_EQ(execute.tensors.size(), 1U);
    EXPECT_EQ(execute.tensors[0].slot, kNoSlot);
    EXPECT_EQ(execute.tensors[0].signature->op, OpType::kBarrier);
  }
}

TEST(Sequencer, a_transfer_concerns_its_two_ends_only) {
  Negotiation n(world_of(4));
  n.expect_ok(n.ask(3, with_peer(operation(OpType::kRecv, "t", {5}), 1)));
  n.expect_silence();
  n.expect_ok(n.ask(1, with_peer(operation(OpType::kSend, "t", {5}), 3)));
  const AnnouncedTensor tensor = n.run_one();
  EXPECT_EQ(tensor.slot, kNoSlot);
  EXPECT_EQ(tensor.per_member, (std::vector<std::int64_t>{1, 3}));  // From, to.
}

TEST(Sequencer, mismatches_fail_one_operation_with_horovods_texts) {
  Signature doubles = allreduce("a");
  doubles.dtype = DataType::kFloat64;
  Signature largest = allreduce("a");
  largest.reduce_op = ReduceOp::kMax;
  Signature scaled = allreduce("a");
  scaled.prescale = 2.0;
  const struct {
    Signature first;
    Signature other;
    std::string text;
  } cases[] = {
      {allreduce("a"),
       doubles,
       "Mismatched data types: One rank had type float32, but another rank had type float64."},
      {allreduce("a"),
       allreduce("a", {2, 2}),
       "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [4], but another rank "
       "sent a tensor of shape [2, 2]."},
      {allreduce("a"),
       operation(OpType::kAllgather, "a", {4}),
       "Mismatched operations: One rank did an ALLREDUCE, but another rank did an ALLGATHER."},
      {operation(OpType::kAllgather, "a", {4}),
       allreduce("a"),
       "Mismatched operations: One rank did an ALLGATHER, but another rank did an ALLREDUCE."},
      {allreduce("a"), largest, "Mismatched reduction operation: One rank specified SUM"},
      {allreduce("a"), scaled, "Mismatched prescale and/or postscale factors"},
      {with_peer(operation(OpType::kBroadcast, "a", {4}), 0),
       with_peer(operation(OpType::kBroadcast, "a", {4}), 1),
       "Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank "
       "specified root rank 1."},
      {with_peer(operation(OpType::kSend, "a", {4}), 1),
       with_peer(operation(OpType::kSend, "a", {4}), 0),
       "Mismatched transfer"},
  };
  for (const auto& c : cases) {
    Negotiation n(world_of(2));
    n.expect_ok(n.ask(0, c.first));
    n.expect_ok(n.ask(1, c.other));
    n.expect_mismatch("a", c.text);
    n.all_ask(allreduce("a"));  // The world goes on, under the same name.
    EXPECT_EQ(n.run_one().signature, allreduce("a"));
  }
}

TEST(Sequencer, a_mismatch_is_told_only_when_every_member_has_asked) {
  Negotiation n(world_of(3));
  n.expect_ok(n.ask(0, allreduce("a")));
  n.expect_ok(n.ask(1, allreduce("a", {5})));
  n.expect_silence();  // Rank 2 would wait for ever if it were told before it asks.
  n.expect_ok(n.ask(2, allreduce("a")));
  n.expect_mismatch("a", "(ranks 0 and 1, tensor 'a')");
}

TEST(Sequencer, what_one_rank_objects_to_fails_when_every_member_has_asked) {
  for (const int objector : {0, 1, 2}) {
    Negotiation n(world_of(3));
    n.all_ask(allreduce("a"));
    const std::uint32_t slot = n.run_one().slot;
    for (int rank = 0; rank < 3; ++rank) {
      n.expect_silence();
      n.expect_ok(rank == objector ? n.object(rank, allreduce("a"), "not here")
                                   : n.ready(rank, slot));
    }
    n.expect_mismatch("a", "not here");
    n.all_ready(slot);
    EXPECT_EQ(n.run().tensors.size(), 1U);
  }
}

TEST(Sequencer, an_objection_of_either_end_fails_a_message) {
  for (const OpType objects : {OpType::kSend, OpType::kRecv}) {
    Negotiation n(world_of(2));
    Signature send = with_peer(operation(OpType::kSend, "s", {4}), 1);
    Signature receive = with_peer(operation(OpType::kRecv, "r", {4}), 0);
    send.mailbox = receive.mailbox = "1.m";
    n.expect_ok(objects == OpType::kSend ? n.object(0, send, "not here") : n.ask(0, send));
    n.expect_ok(objects == OpType::kRecv ? n.object(1, receive, "not here") : n.ask(1, receive));
    const auto commands = n.sequencer.take_commands(n.now);
    ASSERT_EQ(commands.size(), 2U);
    EXPECT_TRUE(std::holds_alternative<MatchReceive>(commands[0]));
    EXPECT_EQ(std::get<FailOperation>(commands[1]).message, "not here");
  }
}

TEST(Sequencer, a_slot_of_another_operation_than_the_pending_one_is_a_mismatch) {
  for (const OpType op : {OpType::kAllgather, OpType::kAlltoall}) {
    Negotiation n(world_of(2));
    const std::vector<std::int64_t> splits =
        op == OpType::kAlltoall ? std::vector<std::int64_t>{2, 2} : std::vector<std::int64_t>();
    n.expect_ok(n.ask(0, operation(op, "a", {4}), splits));
    n.expect_ok(n.ask(1, operation(op, "a", {4}), splits));
    const std::uint32_t slot = n.run_one().slot;
    n.expect_ok(n.ask(0, allreduce("a")));
    n.expect_ok(n.ready(1, slot));
    n.expect_mismatch("a", "Mismatched operations");
  }
}

TEST(Sequencer, a_group_waits_for_its_last_member_and_leaves_together) {
  Negotiation n(world_of(2));
  n.all_ask(in_group(allreduce("a"), "g", 2));
  n.expect_silence();
  n.expect_ok(n.ask(0, in_group(allreduce("b"), "g", 2)));
  n.expect_silence();
  n.expect_ok(n.ask(1, in_group(allreduce("b"), "g", 2)));
  EXPECT_EQ(n.run().tensors.size(), 2U);
  n.all_ready(0);  // The slot knows the group.
  n.expect_silence();
  n.all_ready(1);
  EXPECT_EQ(n.run().tensors.size(), 2U);
}

TEST(Sequencer, one_mismatch_fails_the_whole_group) {
  Negotiation n(world_of(2));
  n.all_ask(in_group(allreduce("a"), "g", 2));
  n.expect_ok(n.ask(0, in_group(allreduce("b"), "g", 2)));
  n.expect_ok(n.ask(1, in_group(allreduce("b", {5}), "g", 2)));
  std::vector<std::string> failed;
  for (const Command& command : n.sequencer.take_commands(n.now)) {
    const auto& failure = std::get<FailOperation>(command);
    EXPECT_NE(failure.message.find("Mismatched ALLREDUCE tensor shapes"), std::string::npos);
    failed.push_back(failure.name);
  }
  EXPECT_EQ(failed, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(n.sequencer.has_pending());
}

// Which operations fail now, all with a mismatch.
std::vector<std::string> failures_of(Negotiation& n) {
  std::vector<std::string> failed;
  for (const Command& command : n.sequencer.take_commands(n.now)) {
    EXPECT_EQ(std::get<FailOperation>(command).code, ErrorCode::kMismatch);
    failed.push_back(std::get<FailOperation>(command).name);
  }
  std::ranges::sort(failed);
  return failed;
}

TEST(Sequencer, a_group_that_another_rank_has_not_fails_with_all_that_is_in_it) {
  Negotiation n(world_of(3));
  const Signature alone = with_peer(operation(OpType::kBroadcast, "place", {4}), 0);
  const Signature first = in_group(allreduce("place"), "place", 2);
  const Signature second = in_group(allreduce("place_2of2"), "place", 2);
  const Signature longer = in_group(allreduce("place"), "place", 3);
  const std::vector<std::string> both = {"place", "place_2of2"};
  for (int again = 0; again < 2; ++again) {  // Nothing of it stays.
    n.expect_ok(n.ask(0, first));
    n.expect_ok(n.ask(0, second));
    n.expect_ok(n.ask(1, first));
    n.expect_ok(n.ask(1, second));
    n.expect_ok(n.ask(2, alone));
    EXPECT_EQ(failures_of(n), both);
    EXPECT_FALSE(n.sequencer.has_pending());
  }
  // What is reported later fails when the last one of these ranks has asked for it.
  n.expect_ok(n.ask(0, alone));
  n.expect_ok(n.ask(1, first));
  n.expect_ok(n.ask(2, first));
  EXPECT_EQ(failures_of(n), (std::vector<std::string>{"place"}));
  n.expect_ok(n.ask(2, second));
  n.expect_silence();
  n.expect_ok(n.ask(1, second));
  EXPECT_EQ(failures_of(n), (std::vector<std::string>{"place_2of2"}));
  // Groups of two and three.
  n.expect_ok(n.ask(0, first));
  n.expect_ok(n.ask(0, second));
  for (const int rank : {1, 2}) {
    n.expect_ok(n.ask(rank, longer));
    n.expect_ok(n.ask(rank, in_group(allreduce("place_2of3"), "place", 3)));
    n.expect_ok(n.ask(rank, in_group(allreduce("place_3of3"), "place", 3)));
  }
  EXPECT_EQ(failures_of(n),
            (std::vector<std::string>{"place", "place_2of2", "place_2of3", "place_3of3"}));
  EXPECT_FALSE(n.sequencer.has_pending());
  n.all_ask(first);
  n.all_ask(second);
  EXPECT_EQ(n.run().tensors.size(), 2U);
}

// Names of a plan's groups are those of gradients, which ranks may also ask for alone.
TEST(Sequencer, groups_of_other_names_fail_when_all_have_asked) {
  Negotiation n(world_of(2));
  n.expect_ok(n.ask(0, in_group(allreduce("b"), "a", 2)));
  n.expect_ok(n.ask(0, in_group(allreduce("a"), "a", 2)));
  n.expect_ok(n.ask(1, allreduce("a")));
  EXPECT_EQ(failures_of(n), (std::vector<std::string>{"a"}));
  n.expect_ok(n.ask(1, allreduce("b")));
  EXPECT_EQ(failures_of(n), (std::vector<std::string>{"b"}));
  n.all_ask(in_group(allreduce("a"), "a", 2));
  n.all_ask(in_group(allreduce("b"), "a", 2));
  EXPECT_EQ(n.run().tensors.size(), 2U);
}

TEST(Sequencer, a_lane_takes_two_buckets_and_then_one_for_each_that_is_done) {
  SequencerOptions options = world_of(2);
  options.num_lanes = 2;
  options.fusion = FusionRule::kNone;
  Negotiation n(options);
  for (int i = 0; i < 7; ++i) {
    n.all_ask(allreduce(std::to_string(i)));
  }
  std::vector<int> on_lane(2, 0);
  for (const Command& command : n.sequencer.take_commands(n.now)) {
    const auto& execute = std::get<Execute>(command);
    EXPECT_EQ(execute.tensors.size(), 1U);
    ++on_lane.at(execute.lane);
  }
  EXPECT_EQ(on_lane, (std::vector<int>{2, 2}));
  n.expect_silence();
  n.sequencer.on_bucket_done(0, 1, n.now);
  EXPECT_EQ(n.one<Execute>().lane, 1U);
  n.expect_silence();
  n.sequencer.on_bucket_done(0, 0, n.now);
  n.sequencer.on_bucket_done(0, 0, n.now);
  EXPECT_EQ(n.sequencer.take_commands(n.now).size(), 2U);
  n.sequencer.on_bucket_done(7, 0, n.now);  // No set, no lane: nothing happens.
  n.sequencer.on_bucket_done(0, 99, n.now);
  n.expect_silence();
}

TEST(Sequencer, a_set_without_rank_0_never_waits_for_its_lanes) {
  SequencerOptions options = world_of(3);
  options.fusion = FusionRule::kNone;
  Negotiation n(options);
  const std::uint32_t set = n.add_set({1, 2});
  for (int i = 0; i < 5; ++i) {
    n.expect_ok(n.ask(1, in_set(allreduce(std::to_string(i)), set)));
    n.expect_ok(n.ask(2, in_set(allreduce(std::to_string(i)), set)));
  }
  EXPECT_EQ(n.sequencer.take_commands(n.now).size(), 5U);
}

TEST(Sequencer, lanes_of_a_set_without_rank_0_take_turns) {
  SequencerOptions options = world_of(4);
  options.fusion = FusionRule::kNone;
  options.num_lanes = 3;
  Negotiation n(options);
  const std::uint32_t sets[] = {n.add_set({1, 2}), n.add_set({2, 3})};
  std::map<std::uint32_t, std::vector<std::uint32_t>> lanes;
  const auto ask_and_note = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const std::string name = std::to_string(i);
      for (const int member : {0, 1}) {
        n.expect_ok(n.ask(1 + member, in_set(allreduce(name), sets[0])));
        n.expect_ok(n.ask(2 + member, in_set(allreduce(name), sets[1])));
      }
      for (const Command& command : n.sequencer.take_commands(n.now)) {
        const auto& execute = std::get<Execute>(command);
        lanes[execute.process_set].push_back(execute.lane);
      }
    }
  };
  ask_and_note(5);  // Each alone, so that all lanes are idle every time.
  for (const std::uint32_t set : sets) {
    EXPECT_EQ(lanes[set], (std::vector<std::uint32_t>{0, 1, 2, 0, 1})) << set;
  }
}

TEST(Sequencer, a_stall_is_warned_of_once_and_names_who_is_missing) {
  Negotiation n(world_of(4));
  n.expect_ok(n.join(3));
  n.expect_ok(n.ask(1, allreduce("late")));
  EXPECT_TRUE(n.sequencer.check_stalls(n.now + seconds(59)).warnings.empty());
  const auto report = n.sequencer.check_stalls(n.now + seconds(61));
  ASSERT_EQ(report.warnings.size(), 1U);
  EXPECT_NE(report.warnings[0].find("ALLREDUCE 'late' has been stalled for 61 s: ranks [0, 2]"),
            std::string::npos)
      << report.warnings[0];
  EXPECT_TRUE(report.fatal.ok());
  const auto again = n.sequencer.check_stalls(n.now + seconds(100'000));
  EXPECT_TRUE(again.warnings.empty());
  EXPECT_TRUE(again.fatal.ok()) << "no shutdown time was set";
}

TEST(Sequencer, a_stall_beyond_the_shutdown_time_is_fatal_and_names_a_rank) {
  SequencerOptions options = world_of(3);
  options.stall_shutdown = seconds(120);
  Negotiation n(options);
  n.expect_ok(n.ask(0, allreduce("late")));
  EXPECT_TRUE(n.sequencer.check_stalls(n.now + seconds(119)).fatal.ok());
  const Status fatal = n.sequencer.check_stalls(n.now + seconds(120)).fatal;
  EXPECT_EQ(fatal.code(), ErrorCode::kTimeout);
  EXPECT_EQ(fatal.rank(), 1);
  EXPECT_NE(fatal.message().find("'late'"), std::string::npos);
}

TEST(Sequencer, what_waits_for_a_lane_is_no_stall_and_the_check_can_be_off) {
  Negotiation busy(world_of(1));
  for (const char* name : {"a", "b", "c"}) {
    busy.all_ask(allreduce(name));
    (void)busy.sequencer.take_commands(busy.now);
  }
  EXPECT_TRUE(busy.sequencer.has_pending());
  EXPECT_TRUE(busy.sequencer.check_stalls(busy.now + seconds(1000)).warnings.empty());
  SequencerOptions options = world_of(2);
  options.stall_check = false;
  options.stall_shutdown = seconds(1);
  Negotiation off(options);
  off.expect_ok(off.ask(0, allreduce("a")));
  const auto report = off.sequencer.check_stalls(off.now + seconds(1000));
  EXPECT_TRUE(report.warnings.empty());
  EXPECT_TRUE(report.fatal.ok());
}

TEST(Sequencer, after_a_leave_nothing_more_is_announced) {
  Negotiation n(world_of(2));
  n.all_ask(allreduce("complete"));
  n.expect_ok(n.leave(1));
  EXPECT_EQ(n.one<ShutDown>().rank, 1);
  n.all_ask(allreduce("late"));
  n.expect_ok(n.leave(0));
  n.expect_silence();
}

TEST(Sequencer, reports_of_what_does_not_exist_are_refused) {
  Negotiation n(world_of(2));
  n.expect_refused(n.ask(2, allreduce("a")));
  n.expect_refused(n.ask(-1, allreduce("a")));
  n.expect_refused(n.ready(0, 0));
  n.expect_refused(n.ready(0, kNoSlot));
  n.expect_refused(n.ask(0, in_set(allreduce("a"), 1)));
  n.expect_silence();
  EXPECT_FALSE(n.sequencer.has_pending());
}

TEST(Sequencer, a_second_report_of_one_operation_is_refused) {
  Negotiation n(world_of(2));
  n.expect_ok(n.ask(0, allreduce("a")));
  n.expect_refused(n.ask(0, allreduce("a")));
  n.expect_ok(n.ask(1, allreduce("a")));
  n.expect_refused(n.ask(1, allreduce("a")));  // Complete, but not announced yet.
}

TEST(Sequencer, a_joined_rank_that_reports_what_is_complete_without_it_is_refused) {
  Negotiation n(world_of(2));
  n.expect_ok(n.join(1));
  n.expect_ok(n.ask(0, allreduce("a")));
  n.expect_refused(n.ask(1, allreduce("a")));
  EXPECT_EQ(n.run().tensors.size(), 1U);
  n.expect_silence();
}

TEST(Sequencer, impossible_requests_are_refused_before_they_are_counted) {
  Negotiation n(world_of(3));
  n.expect_ok(n.join(2));  // With somebody joined, every member is looked up.
  const auto big = std::int64_t{1} << 62;
  n.expect_refused(n.ask(1, allreduce("a", {-1})));
  n.expect_refused(n.ask(1, allreduce("a", {big, 4})));
  n.expect_refused(n.ask(1, operation(OpType::kAllgather, "a")));
  n.expect_refused(n.ask(1, operation(OpType::kAlltoall, "a", {3}), {1, 2}));
  n.expect_refused(n.ask(1, operation(OpType::kAlltoall, "a", {3}), {-1, 2, 2}));
  n.expect_refused(n.ask(1, operation(OpType::kAlltoall, "a", {3}), {0, 4, 0}));
  for (const int peer : {-1, 1, 3, 1'000'000}) {  // Rank 1 itself is none either.
    n.expect_refused(n.ask(1, with_peer(operation(OpType::kSend, "a"), peer)));
    n.expect_refused(n.ask(1, with_peer(operation(OpType::kRecv, "a"), peer)));
  }
  n.expect_refused(n.ask(1, with_peer(operation(OpType::kBroadcast, "a"), 3)));
  for (const std::vector<std::int32_t>& ranks :
       {std::vector<std::int32_t>{}, {0, 3}, {-1, 0}, {1, 0}, {1, 1}}) {
    n.expect_refused(n.ask(1, operation(OpType::kAddProcessSet, "a"), {}, ranks));
  }
  for (const int set : {-1, 0, 1}) {
    n.expect_refused(n.ask(1, with_peer(operation(OpType::kRemoveProcessSet, "a"), set)));
  }
  EXPECT_FALSE(n.sequencer.has_pending());
  n.expect_silence();
}

TEST(Sequencer, transfers_between_other_ranks_take_no_lane_of_rank_0) {
  Negotiation n(world_of(3));
  for (int i = 0; i < 10; ++i) {
    const std::string name = "t" + std::to_string(i);
    n.expect_ok(n.ask(1, with_peer(operation(OpType::kSend, name, {4}), 2)));
    n.expect_ok(n.ask(2, with_peer(operation(OpType::kRecv, name, {4}), 1)));
    EXPECT_EQ(n.one<Execute>().tensors.size(), 1U) << "nobody tells rank 0 that one is done";
  }
}

}  // namespace
}  // namespace lightcc::sequencer_test
