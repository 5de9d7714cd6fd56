// What the sequencer puts into one bucket: rules that tensors ask for, plans, cycles.
#include <chrono>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/sequencer.hpp"

#include "control/negotiation.hpp"

namespace lightcc::sequencer_fusion_test {
namespace {

using testing::allreduce;
using testing::in_group;
using testing::in_set;
using testing::Negotiation;
using testing::operation;
using testing::with_peer;
using testing::world_of;

// One bucket after another, as the lane becomes free.
std::vector<std::vector<std::string>> buckets_of(Negotiation& n) {
  std::vector<std::vector<std::string>> buckets;
  for (bool any = true; any;) {
    any = false;
    for (const Command& command : n.sequencer.take_commands(n.now)) {
      const auto& execute = std::get<Execute>(command);
      buckets.emplace_back();
      for (const AnnouncedTensor& tensor : execute.tensors) {
        buckets.back().push_back(tensor.signature ? tensor.signature->name
                                                  : "#" + std::to_string(tensor.slot));
      }
      n.sequencer.on_bucket_done(execute.process_set, execute.lane, n.now);
      any = true;
    }
  }
  return buckets;
}

Signature fused_by(Signature s, FusionRule rule, std::uint64_t limit_bytes = 0) {
  s.fusion = {rule, limit_bytes};
  return s;
}

using Names = std::vector<std::vector<std::string>>;

TEST(Sequencer, auto_fusion_gathers_what_waited_for_a_lane) {
  Negotiation n(world_of(2));
  for (const char* name : {"a", "b"}) {
    n.all_ask(allreduce(name));
    EXPECT_EQ(n.one<Execute>().tensors.size(), 1U);
  }
  for (const char* name : {"c", "d", "e"}) {
    n.all_ask(allreduce(name));
    n.expect_silence();
  }
  Signature doubles = allreduce("f");
  doubles.dtype = DataType::kFloat64;
  n.all_ask(doubles);
  n.sequencer.on_bucket_done(0, 0, n.now);
  EXPECT_EQ(n.one<Execute>().tensors.size(), 3U);
  n.sequencer.on_bucket_done(0, 0, n.now);
  EXPECT_EQ(n.one<Execute>().tensors[0].signature, doubles);
}

TEST(Sequencer, only_allreduces_that_compute_the_same_are_fused) {
  Negotiation n(world_of(1));
  Signature scaled = allreduce("scaled");
  scaled.postscale = 0.5;
  Signature adasum = allreduce("adasum");
  adasum.reduce_op = ReduceOp::kAdasum;
  Signature adasum2 = adasum;
  adasum2.name = "adasum2";
  const std::vector<Signature> all = {allreduce("plain"),
                                      scaled,
                                      adasum,
                                      adasum2,
                                      operation(OpType::kAllgather, "g1", {1}),
                                      operation(OpType::kAllgather, "g2", {1}),
                                      allreduce("plain2")};
  for (const Signature& s : all) {
    n.all_ask(s);
  }
  std::vector<std::size_t> sizes;
  for (int round = 0; round < 4; ++round) {
    for (const Command& command : n.sequencer.take_commands(n.now)) {
      sizes.push_back(std::get<Execute>(command).tensors.size());
      n.sequencer.on_bucket_done(0, 0, n.now);
    }
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{2, 1, 1, 1, 1, 1}));  // plain with plain2.
}

TEST(SequencerFusion, tensors_are_fused_as_they_wish_and_only_with_those_that_wish_the_same) {
  Negotiation n(world_of(2));
  n.all_ask(fused_by(allreduce("none1"), FusionRule::kNone));
  n.all_ask(fused_by(allreduce("none2"), FusionRule::kNone));
  n.all_ask(fused_by(allreduce("small1"), FusionRule::kAuto, 32));
  n.all_ask(allreduce("default1"));
  for (const char* name : {"p1", "p2"}) {
    n.all_ask(in_group(fused_by(allreduce(name), FusionRule::kPlanned), "p", 2));
  }
  n.all_ask(fused_by(allreduce("small2"), FusionRule::kAuto, 32));
  n.all_ask(fused_by(allreduce("small3"), FusionRule::kAuto, 32));
  n.all_ask(allreduce("default2"));
  EXPECT_EQ(buckets_of(n),
            (Names{{"none1"},
                   {"none2"},
                   {"small1", "small2"},
                   {"default1", "default2"},
                   {"p1", "p2"},
                   {"small3"}}));
}

TEST(SequencerFusion, a_plan_may_change_from_step_to_step) {
  Negotiation n(world_of(2));
  const auto planned = [](const char* name) {
    return fused_by(allreduce(name), FusionRule::kPlanned);
  };
  n.all_ask(in_group(planned("a"), "a", 2));
  n.all_ask(planned("c"));
  n.all_ask(in_group(planned("b"), "a", 2));
  EXPECT_EQ(buckets_of(n), (Names{{"c"}, {"a", "b"}}));
  n.all_ask(in_group(planned("c"), "b", 2));
  n.all_ask(planned("a"));
  n.all_ask(in_group(planned("b"), "b", 2));
  EXPECT_EQ(buckets_of(n), (Names{{"a"}, {"c", "b"}}));
  for (const std::uint32_t slot : {0U, 1U, 2U}) {  // c, a, b: as last time.
    n.all_ready(slot);
  }
  EXPECT_EQ(buckets_of(n), (Names{{"#1"}, {"#0", "#2"}}));
}

TEST(SequencerFusion, different_wishes_for_one_tensor_are_a_mismatch) {
  Negotiation n(world_of(2));
  n.expect_ok(n.ask(0, fused_by(allreduce("a"), FusionRule::kAuto, 32)));
  n.expect_ok(n.ask(1, fused_by(allreduce("a"), FusionRule::kPlanned)));
  n.expect_mismatch("a",
                    "Mismatched fusion: One rank asked for auto_fusion of at most 32 bytes, but "
                    "another rank asked for a planned bucket.");
}

// Buckets of one tensor take 4 ms, so the next one closes a quarter of that before the end.
class SequencerCloses : public ::testing::Test {
 protected:
  static constexpr auto kTaken = std::chrono::milliseconds(4);

  SequencerCloses() : n_(options_of_the_test()) {
    for (int i = 0; i < 3; ++i) {
      n_.all_ask(allreduce("seen" + std::to_string(i)));
      EXPECT_EQ(n_.one<Execute>().tensors.size(), 1U);
      finish_after(kTaken);
    }
    n_.all_ask(allreduce("running"));
    EXPECT_EQ(n_.one<Execute>().tensors.size(), 1U);
    begin_ = n_.now;
  }
  static SequencerOptions options_of_the_test() {
    SequencerOptions options = world_of(2);
    options.fusion_threshold_bytes = 48;
    return options;
  }
  void finish_after(Duration time) {
    n_.now += time;
    n_.sequencer.on_bucket_done(0, 0, n_.now);
  }
  void expect_held(const Signature& signature) {
    n_.all_ask(signature);
    n_.expect_silence();
    EXPECT_TRUE(n_.sequencer.has_held());
  }

  Negotiation n_;
  TimePoint begin_;
};

TEST_F(SequencerCloses, a_bucket_behind_a_running_one_shortly_before_that_ends) {
  expect_held(allreduce("a"));
  EXPECT_EQ(n_.sequencer.next_release(), begin_ + std::chrono::milliseconds(3));
  n_.now += std::chrono::milliseconds(2);
  expect_held(allreduce("b"));
  n_.now = n_.sequencer.next_release();
  EXPECT_EQ(n_.one<Execute>().tensors.size(), 2U);
  EXPECT_FALSE(n_.sequencer.has_held());
  n_.all_ask(allreduce("c"));
  n_.expect_silence();
  EXPECT_FALSE(n_.sequencer.has_held()) << "the lane is full, which no time changes";
}

TEST_F(SequencerCloses, a_bucket_as_soon_as_the_lane_is_idle) {
  expect_held(allreduce("a"));
  finish_after(std::chrono::milliseconds(1));
  EXPECT_EQ(n_.one<Execute>().tensors.size(), 1U);
}

TEST_F(SequencerCloses, a_bucket_that_is_full) {
  expect_held(allreduce("a"));
  expect_held(allreduce("b"));
  n_.all_ask(allreduce("c"));
  EXPECT_EQ(n_.one<Execute>().tensors.size(), 3U);
}

TEST_F(SequencerCloses, at_once_what_nothing_can_join) {
  for (const Signature& alone : {operation(OpType::kAllgather, "g", {1}),
                                 fused_by(allreduce("n"), FusionRule::kNone),
                                 fused_by(allreduce("p"), FusionRule::kPlanned)}) {
    n_.all_ask(alone);
    EXPECT_EQ(n_.one<Execute>().tensors.size(), 1U);
    finish_after(kTaken);
    finish_after(kTaken);
    n_.all_ask(allreduce("running"));
    EXPECT_EQ(n_.one<Execute>().tensors.size(), 1U);
  }
}

TEST_F(SequencerCloses, a_bucket_that_something_else_waits_behind) {
  expect_held(allreduce("a"));
  n_.all_ask(with_peer(operation(OpType::kBroadcast, "b", {1}), 0));
  EXPECT_EQ(n_.one<Execute>().tensors[0].signature->name, "a");
}

TEST_F(SequencerCloses, at_once_behind_a_bucket_that_is_short_or_unknown) {
  finish_after(std::chrono::microseconds(300));
  for (int i = 0; i < 400; ++i) {
    n_.all_ask(allreduce("short" + std::to_string(i)));
    (void)n_.sequencer.take_commands(n_.now);
    finish_after(std::chrono::microseconds(300));
  }
  n_.all_ask(allreduce("first"));
  EXPECT_EQ(n_.one<Execute>().tensors.size(), 1U);
  n_.all_ask(allreduce("second"));
  EXPECT_EQ(n_.one<Execute>().tensors.size(), 1U);
  finish_after(std::chrono::microseconds(300));
  finish_after(std::chrono::microseconds(300));
  n_.all_ask(operation(OpType::kAllgather, "gathered", {1}));
  EXPECT_EQ(n_.one<Execute>().tensors.size(), 1U);
  n_.all_ask(allreduce("third"));
  EXPECT_EQ(n_.one<Execute>().tensors.size(), 1U);
}

TEST(SequencerFusion, horovods_cycle_holds_tensors_back_and_lets_them_go_together) {
  SequencerOptions options = world_of(2);
  options.fusion = FusionRule::kHorovod;
  options.horovod_cycle = std::chrono::milliseconds(5);
  Negotiation n(options);
  n.now = TimePoint() + std::chrono::seconds(1);
  const auto begin = n.now;
  n.all_ask(allreduce("a"));
  EXPECT_TRUE(n.sequencer.has_held());
  n.expect_silence();
  n.sequencer.release_held(n.now);  // The first cycle begins when there is something.
  EXPECT_FALSE(n.sequencer.has_held());
  EXPECT_EQ(buckets_of(n), (Names{{"a"}}));
  n.all_ask(allreduce("b"));
  n.all_ask(fused_by(allreduce("other"), FusionRule::kAuto, 64));
  n.all_ask(allreduce("c"));
  EXPECT_EQ(buckets_of(n), (Names{{"other"}})) << "no other rule has a cycle";
  EXPECT_EQ(n.sequencer.next_release(), begin + options.horovod_cycle);
  n.sequencer.release_held(begin + options.horovod_cycle - std::chrono::nanoseconds(1));
  n.expect_silence();
  n.sequencer.release_held(begin + options.horovod_cycle);
  EXPECT_EQ(buckets_of(n), (Names{{"b", "c"}}));
}

TEST(SequencerFusion, what_the_cycle_holds_back_goes_with_its_process_set) {
  SequencerOptions options = world_of(2);
  options.fusion = FusionRule::kHorovod;
  Negotiation n(options);
  const std::uint32_t set = n.add_set({0, 1});
  n.all_ask(in_set(allreduce("a"), set));
  EXPECT_TRUE(n.sequencer.has_held());
  n.remove_set(set);
  EXPECT_FALSE(n.sequencer.has_held());
  EXPECT_EQ(n.one<RemoveProcessSet>().id, set);
}

}  // namespace
}  // namespace lightcc::sequencer_fusion_test
