// Who takes part: ranks that have joined, process sets that come and go.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/sequencer.hpp"

#include "control/negotiation.hpp"

namespace lightcc::sequencer_membership_test {
namespace {

using testing::allreduce;
using testing::in_group;
using testing::in_set;
using testing::Negotiation;
using testing::operation;
using testing::with_peer;
using testing::world_of;

TEST(Sequencer, joined_ranks_count_as_zeros_where_zeros_make_sense) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    for (const bool join_first : {true, false}) {
      Negotiation n(world_of(2));
      Signature s = allreduce("a");
      s.reduce_op = op;
      for (const bool joins : {join_first, !join_first}) {
        n.expect_ok(joins ? n.join(1) : n.ask(0, s));
      }
      EXPECT_EQ(n.run_one().signature, s);
    }
  }
  Negotiation n(world_of(2));
  n.expect_ok(n.join(1));
  n.expect_ok(n.ask(0, operation(OpType::kBarrier, "barrier")));
  EXPECT_EQ(n.run_one().signature->op, OpType::kBarrier);
}

TEST(Sequencer, joined_ranks_are_refused_where_zeros_make_no_sense) {
  Signature largest = allreduce("a", {2});
  largest.reduce_op = ReduceOp::kMax;
  Signature adasum = largest;
  adasum.reduce_op = ReduceOp::kAdasum;
  const std::pair<Signature, std::string> cases[] = {
      {largest, "ALLREDUCE with MAX is not supported with Join at this time."},
      {adasum, "ALLREDUCE with ADASUM is not supported with Join at this time."},
      {operation(OpType::kAllgather, "a", {2}), "ALLGATHER is not supported with Join"},
      {with_peer(operation(OpType::kBroadcast, "a"), 0), "BROADCAST is not supported with Join"},
      {operation(OpType::kReducescatter, "a", {2}), "REDUCESCATTER is not supported with Join"},
      {with_peer(operation(OpType::kSend, "a"), 1), "SEND is not supported with Join"},
  };
  for (const auto& [signature, text] : cases) {
    Negotiation n(world_of(2));
    n.expect_ok(n.join(1));
    n.expect_ok(n.ask(0, signature));
    n.expect_mismatch("a", text);
  }
}

TEST(Sequencer, join_of_all_ranks_names_the_last_and_starts_over) {
  Negotiation n(world_of(3));
  for (int round = 0; round < 2; ++round) {
    n.expect_ok(n.join(2));
    n.expect_ok(n.join(0));
    n.expect_silence();
    n.expect_ok(n.join(1));
    EXPECT_EQ(n.one<AllJoined>().last_rank, 1);
    n.expect_ok(n.ask(0, allreduce("a")));  // Nobody is joined any more.
    n.expect_silence();
    n.expect_ok(n.ask(1, allreduce("a")));
    n.expect_ok(n.ask(2, allreduce("a")));
    EXPECT_EQ(n.run().tensors.size(), 1U);
  }
}

TEST(Sequencer, all_joined_comes_after_everything_that_was_complete) {
  Negotiation n(world_of(2));
  std::vector<Execute> running;
  for (const char* name : {"a", "b"}) {  // Fills the lane.
    n.all_ask(allreduce(name));
    running.push_back(n.one<Execute>());
  }
  n.expect_ok(n.join(1));
  n.expect_ok(n.ask(0, allreduce("c")));
  n.expect_ok(n.join(0));
  n.expect_silence();
  n.sequencer.on_bucket_done(0, running[0].lane, n.now);
  const auto commands = n.sequencer.take_commands(n.now);
  ASSERT_EQ(commands.size(), 2U);
  EXPECT_EQ(std::get<Execute>(commands[0]).tensors[0].signature, allreduce("c"));
  EXPECT_EQ(std::get<AllJoined>(commands[1]).last_rank, 0);
}

TEST(Sequencer, process_sets_negotiate_among_their_members) {
  Negotiation n(world_of(3));
  const std::uint32_t set = n.add_set({0, 2});
  EXPECT_EQ(set, 1U);
  n.expect_ok(n.ask(2, in_set(allreduce("a"), set)));
  n.expect_ok(n.ask(1, allreduce("a")));  // The same name in another set is another operation.
  n.expect_silence();
  n.expect_ok(n.ask(0, in_set(allreduce("a"), set)));
  const Execute execute = n.run();
  EXPECT_EQ(execute.process_set, set);
  EXPECT_EQ(execute.tensors.size(), 1U);
  n.expect_refused(n.ask(1, in_set(allreduce("b"), set)));
}

TEST(Sequencer, ranks_that_add_different_sets_disagree) {
  Negotiation n(world_of(2));
  n.expect_ok(n.ask(0, operation(OpType::kAddProcessSet, "add"), {}, {0}));
  n.expect_ok(n.ask(1, operation(OpType::kAddProcessSet, "add"), {}, {0, 1}));
  n.expect_mismatch("add", "Mismatched process sets");
}

TEST(Sequencer, overlapping_process_sets_share_one_sequence) {
  Negotiation n(world_of(3));
  const std::uint32_t left = n.add_set({0, 1});
  const std::uint32_t right = n.add_set({1, 2});
  std::uint64_t next = 0;
  for (int round = 0; round < 4; ++round) {
    n.all_ask(allreduce("a"));
    for (const int rank : {0, 1}) {
      n.expect_ok(n.ask(rank, in_set(allreduce("a"), left)));
      n.expect_ok(n.ask(rank + 1, in_set(allreduce("a"), right)));
    }
    std::vector<std::uint32_t> sets;
    for (const Command& command : n.sequencer.take_commands(n.now)) {
      const auto& execute = std::get<Execute>(command);
      EXPECT_EQ(execute.sequence, next++);
      sets.push_back(execute.process_set);
      n.sequencer.on_bucket_done(execute.process_set, execute.lane, n.now);
    }
    std::sort(sets.begin(), sets.end());
    EXPECT_EQ(sets, (std::vector<std::uint32_t>{0, left, right}));
  }
}

TEST(Sequencer, removing_a_process_set_forgets_what_waits_in_it) {
  Negotiation n(world_of(2));
  const std::uint32_t set = n.add_set({0, 1});
  n.expect_ok(n.ask(0, in_set(allreduce("waits"), set)));
  n.expect_ok(n.ask(0, in_set(in_group(allreduce("grouped"), "g", 2), set)));
  n.expect_ok(n.ask(1, in_set(in_group(allreduce("grouped"), "g", 2), set)));
  n.expect_ok(n.ask(1, allreduce("elsewhere")));
  n.remove_set(set);
  EXPECT_EQ(n.one<RemoveProcessSet>().id, set);
  n.expect_ok(n.ask(0, allreduce("elsewhere")));
  EXPECT_EQ(n.run_one().signature, allreduce("elsewhere"));
  // The number comes back; the half group of before does not.
  EXPECT_EQ(n.add_set({0, 1}), set);
  n.all_ask(in_set(in_group(allreduce("grouped"), "g", 2), set));
  n.expect_silence();
  n.all_ask(in_set(in_group(allreduce("second"), "g", 2), set));
  EXPECT_EQ(n.run().tensors.size(), 2U);
}

TEST(Sequencer, slots_of_a_removed_set_mean_nothing_until_given_a_new_meaning) {
  Negotiation n(world_of(3));
  const std::uint32_t set = n.add_set({0, 1});
  const Signature gather = in_set(operation(OpType::kAllgather, "g", {1, 1}), set);
  n.expect_ok(n.ask(0, gather));
  n.expect_ok(n.ask(1, gather));
  const std::uint32_t slot = n.run_one().slot;
  n.remove_set(set);
  EXPECT_EQ(n.one<RemoveProcessSet>().id, set);
  EXPECT_EQ(n.add_set({0, 1, 2}), set);
  n.all_ask(gather);
  const AnnouncedTensor again = n.run_one();
  EXPECT_EQ(again.slot, slot);
  EXPECT_EQ(again.per_member, (std::vector<std::int64_t>{1, 1, 1}));
  n.all_ready(slot);
  EXPECT_FALSE(n.run_one().signature.has_value());
  n.remove_set(set);
  EXPECT_EQ(n.one<RemoveProcessSet>().id, set);
  EXPECT_EQ(n.add_set({0, 1, 2}), set);
  n.expect_refused(n.ready(2, slot));
}

}  // namespace
}  // namespace lightcc::sequencer_membership_test
