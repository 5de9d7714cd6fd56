// What the sequencer remembers by slot: operations that come again, changed or not.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/sequencer.hpp"

#include "control/negotiation.hpp"

namespace lightcc::sequencer_slots_test {
namespace {

using testing::allreduce;
using testing::Negotiation;
using testing::operation;
using testing::world_of;

TEST(Sequencer, the_second_time_goes_by_slot) {
  Negotiation n(world_of(2));
  n.all_ask(allreduce("a"));
  const AnnouncedTensor first = n.run_one();
  ASSERT_NE(first.slot, kNoSlot);
  ASSERT_TRUE(first.signature.has_value());
  for (int round = 0; round < 3; ++round) {
    n.all_ready(first.slot);
    EXPECT_EQ(n.run_one(), (AnnouncedTensor{first.slot, std::nullopt, {}}));
  }
}

TEST(Sequencer, a_changed_shape_is_announced_in_full_under_the_same_slot) {
  Negotiation n(world_of(2));
  n.all_ask(allreduce("a"));
  const std::uint32_t slot = n.run_one().slot;
  n.all_ask(allreduce("a", {5}));
  EXPECT_EQ(n.run_one(), (AnnouncedTensor{slot, allreduce("a", {5}), {}}));
  n.all_ready(slot);
  EXPECT_EQ(n.run_one(), (AnnouncedTensor{slot, std::nullopt, {}}));
}

TEST(Sequencer, a_slot_and_the_same_in_full_agree) {
  Negotiation n(world_of(2));
  n.all_ask(allreduce("a"));
  const std::uint32_t slot = n.run_one().slot;
  n.expect_ok(n.ready(0, slot));
  n.expect_ok(n.ask(1, allreduce("a")));  // Has forgotten: it had joined.
  EXPECT_EQ(n.run_one(), (AnnouncedTensor{slot, allreduce("a"), {}}));
}

TEST(Sequencer, a_slot_and_another_shape_disagree) {
  for (const bool slot_first : {true, false}) {
    Negotiation n(world_of(2));
    n.all_ask(allreduce("a"));
    const std::uint32_t slot = n.run_one().slot;
    for (const bool by_slot : {slot_first, !slot_first}) {
      n.expect_ok(by_slot ? n.ready(0, slot) : n.ask(1, allreduce("a", {5})));
    }
    n.expect_mismatch("a", "Mismatched ALLREDUCE tensor shapes");
    n.all_ready(slot);  // What it meant before, it still means.
    EXPECT_EQ(n.run_one().slot, slot);
  }
}

TEST(Sequencer, beyond_the_capacity_operations_travel_in_full) {
  SequencerOptions options = world_of(2);
  options.slot_capacity = 2;
  Negotiation n(options);
  std::vector<std::uint32_t> slots;
  for (const char* name : {"a", "b", "c", "c"}) {
    n.all_ask(allreduce(name));
    const AnnouncedTensor tensor = n.run_one();
    slots.push_back(tensor.slot);
    EXPECT_EQ(tensor.signature, allreduce(name));
  }
  EXPECT_EQ(slots, (std::vector<std::uint32_t>{0, 1, kNoSlot, kNoSlot}));
}

// Members say it in full or mean it by a slot, whoever comes first.
TEST(Sequencer, the_greatest_number_of_steps_ahead_is_announced) {
  Negotiation n(world_of(3));
  const auto ahead = [](std::int64_t steps) {
    Signature s = allreduce("a");
    s.compression = CompressionSpec{};
    s.steps_ahead = steps;
    return s;
  };
  n.expect_ok(n.ask(0, ahead(7)));
  n.expect_ok(n.ask(2, ahead(-2)));
  n.expect_ok(n.ask(1, ahead(3)));
  const AnnouncedTensor first = n.run_one();
  EXPECT_EQ(first.signature, ahead(7));
  n.all_ready(first.slot);
  EXPECT_EQ(n.run_one(), (AnnouncedTensor{first.slot, std::nullopt, {}}));
  for (const std::int64_t loaded : {9, 5}) {
    for (const bool is_first : {true, false}) {
      n.expect_ok(is_first ? n.ask(1, ahead(loaded)) : n.ready(0, first.slot));
      n.expect_ok(is_first ? n.ready(0, first.slot) : n.ask(1, ahead(loaded)));
      n.expect_ok(n.ready(2, first.slot));
      EXPECT_EQ(n.run_one(),
                (AnnouncedTensor{first.slot, ahead(std::max<std::int64_t>(loaded, 7)), {}}));
      n.all_ask(ahead(7));
      n.run_one();
    }
  }
}

TEST(Sequencer, automatic_names_and_barriers_never_take_a_slot) {
  Negotiation n(world_of(2));
  Signature numbered = allreduce("allreduce.noname.1");
  numbered.is_automatic = true;
  n.all_ask(numbered);
  EXPECT_EQ(n.run_one().slot, kNoSlot);
  n.all_ask(operation(OpType::kBarrier, "barrier"));
  EXPECT_EQ(n.run_one().slot, kNoSlot);
  n.all_ask(allreduce("named"));
  EXPECT_EQ(n.run_one().slot, 0U);
}

TEST(Sequencer, a_callers_name_takes_a_slot_whatever_words_it_has) {
  Negotiation n(world_of(2));
  std::uint32_t slot = 0;
  for (const char* name : {"allreduce.noname.0", "allreduce.layer.noname.weight"}) {
    n.all_ask(allreduce(name));
    EXPECT_EQ(n.run_one().slot, slot++) << name;
  }
}

TEST(Sequencer, rows_of_an_allgather_are_remembered_and_changed_by_member) {
  Negotiation n(world_of(3));
  const auto rows = [](std::int64_t count) {
    return operation(OpType::kAllgather, "g", {count, 2});
  };
  n.expect_ok(n.ask(2, rows(30)));
  n.expect_ok(n.ask(0, rows(10)));
  n.expect_ok(n.ask(1, rows(20)));
  const AnnouncedTensor first = n.run_one();
  EXPECT_EQ(first.per_member, (std::vector<std::int64_t>{10, 20, 30}));
  n.all_ready(first.slot);
  EXPECT_EQ(n.run_one(), (AnnouncedTensor{first.slot, std::nullopt, {}}));
  n.expect_ok(n.ready(0, first.slot));
  n.expect_ok(n.ask(1, rows(21)));
  n.expect_ok(n.ready(2, first.slot));
  const AnnouncedTensor changed = n.run_one();
  EXPECT_EQ(changed.slot, first.slot);
  EXPECT_TRUE(changed.signature.has_value());
  EXPECT_EQ(changed.per_member, (std::vector<std::int64_t>{10, 21, 30}));
  n.expect_ok(n.ask(0, rows(0)));
  n.expect_ok(n.ready(1, first.slot));
  n.expect_ok(n.ready(2, first.slot));
  EXPECT_EQ(n.run_one().per_member, (std::vector<std::int64_t>{0, 21, 30}));
}

TEST(Sequencer, splits_of_an_alltoall_are_remembered_and_changed_by_member) {
  Negotiation n(world_of(2));
  const auto rows = [](std::int64_t count) { return operation(OpType::kAlltoall, "x", {count}); };
  n.expect_ok(n.ask(1, rows(7), {3, 4}));
  n.expect_ok(n.ask(0, rows(3), {1, 2}));
  const AnnouncedTensor first = n.run_one();
  EXPECT_EQ(first.per_member, (std::vector<std::int64_t>{1, 2, 3, 4}));
  n.all_ready(first.slot);
  EXPECT_EQ(n.run_one(), (AnnouncedTensor{first.slot, std::nullopt, {}}));
  n.expect_ok(n.ready(1, first.slot));
  n.expect_ok(n.ask(0, rows(9), {4, 5}));
  EXPECT_EQ(n.run_one().per_member, (std::vector<std::int64_t>{4, 5, 3, 4}));
}

}  // namespace
}  // namespace lightcc::sequencer_slots_test
