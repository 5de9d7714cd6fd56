// All-reduces whose inputs come with the reports: when the result is announced, when the operation
// is run as any other, and what is refused.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/inline_allreduce.hpp"
#include "lightcc/control/sequencer.hpp"

#include "control/negotiation.hpp"

namespace lightcc::sequencer_inline_test {
namespace {

using testing::allreduce;
using testing::in_group;
using testing::in_set;
using testing::Negotiation;
using testing::operation;
using testing::world_of;

constexpr std::size_t kBytes = 16;  // What allreduce() has.

/// An input whose bytes are all `value`.
InlineInput input(std::int32_t rank, int value, std::size_t bytes = kBytes) {
  return {rank, Bytes(bytes, static_cast<std::byte>(value))};
}

/// The exclusive or of all inputs.
bool combine(const Signature& /*signature*/,
             const std::vector<std::int32_t>& members,
             std::span<const std::byte> inputs,
             std::span<std::byte> result) {
  EXPECT_EQ(inputs.size(), members.size() * result.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    result[i % result.size()] ^= inputs[i];
  }
  return true;
}

SequencerOptions combining(int size) {
  SequencerOptions options = world_of(size);
  options.combine_inline = combine;
  return options;
}

/// Three ranks that have asked for "a" before, so that it has a slot.
class Inline : public ::testing::Test {
 protected:
  explicit Inline(const SequencerOptions& options = combining(3)) : n(options) {
    n.all_ask(allreduce("a"));
    slot = n.run_one().slot;
  }

  Negotiation n;
  std::uint32_t slot = 0;
};

TEST_F(Inline, a_result_is_announced_when_all_inputs_are_there) {
  for (int round = 0; round < 3; ++round) {
    n.expect_ok(n.ready_with(1, slot, {input(1, 1)}));
    n.expect_ok(n.ready_with(0, slot, {input(0, 2 + round)}));
    n.expect_silence();
    n.expect_ok(n.ready_with(2, slot, {input(2, 8)}));
    const auto execute = n.one<Execute>();  // No lane is taken, so none has to become free.
    ASSERT_EQ(execute.tensors.size(), 1U);
    EXPECT_EQ(execute.tensors[0],
              (AnnouncedTensor{slot, std::nullopt, {}, input(0, 9 ^ (2 + round)).data}));
    EXPECT_FALSE(n.sequencer.has_pending());
  }
}

TEST_F(Inline, one_without_an_input_has_it_run) {
  for (const int without : {0, 1, 2}) {
    for (int rank = 0; rank < 3; ++rank) {
      n.expect_ok(rank == without ? n.ready(rank, slot)
                                  : n.ready_with(rank, slot, {input(rank, 1)}));
    }
    EXPECT_EQ(n.run_one(), (AnnouncedTensor{slot, std::nullopt, {}}));
  }
  // What was left over counts for nothing the next time.
  n.expect_ok(n.ready_with(0, slot, {input(0, 1)}));
  n.expect_ok(n.ready(1, slot));
  n.expect_ok(n.ready(2, slot));
  EXPECT_TRUE(n.run_one().result.empty());
}

TEST_F(Inline, a_report_of_a_subtree_brings_the_inputs_of_its_ranks_in_any_order) {
  n.expect_ok(n.ready_with(0, slot, {input(0, 1)}));
  const std::vector<std::int32_t> ranks{2, 1};
  const std::vector<InlineInput> inputs{input(1, 2), input(2, 4)};
  n.expect_ok(n.sequencer.on_reports(ranks, ReadySlot{slot}, n.now, inputs));
  EXPECT_EQ(n.one<Execute>().tensors.at(0).result, input(0, 7).data);
}

TEST_F(Inline, requests_in_full_have_inputs_too) {
  Signature automatic = allreduce("allreduce.noname.3");
  automatic.is_automatic = true;
  for (const Signature& s : {automatic, allreduce("b"), allreduce("a", {1})}) {
    const std::size_t bytes = s.name == "a" ? 4 : kBytes;
    for (int rank = 0; rank < 3; ++rank) {
      n.expect_ok(n.ask_with(rank, s, {input(rank, 1, bytes)}));
    }
    const auto execute = n.one<Execute>();
    ASSERT_EQ(execute.tensors.size(), 1U);
    EXPECT_EQ(execute.tensors[0].signature, s);
    EXPECT_EQ(execute.tensors[0].slot == kNoSlot, s.is_automatic);
    EXPECT_EQ(execute.tensors[0].result, input(0, 1, bytes).data);
  }
}

TEST_F(Inline, a_mismatch_is_told_as_without_inputs) {
  n.expect_ok(n.ready_with(0, slot, {input(0, 1)}));
  n.expect_ok(n.ask_with(1, allreduce("a", {1}), {input(1, 1, 4)}));
  n.expect_ok(n.ready_with(2, slot, {input(2, 1)}));
  n.expect_mismatch("a", "Mismatched ALLREDUCE tensor shapes");
}

TEST_F(Inline, ranks_that_have_joined_have_no_input_and_it_is_run) {
  n.expect_ok(n.join(2));
  n.expect_ok(n.ready_with(0, slot, {input(0, 1)}));
  n.expect_ok(n.ready_with(1, slot, {input(1, 1)}));
  EXPECT_TRUE(n.run_one().result.empty());
}

TEST_F(Inline, members_of_a_process_set_are_enough) {
  const std::uint32_t set = n.add_set({0, 2});
  for (const int rank : {2, 0}) {
    n.expect_ok(n.ask_with(rank, in_set(allreduce("s"), set), {input(rank, 1 + rank)}));
  }
  EXPECT_EQ(n.one<Execute>().tensors.at(0).result, input(0, 1 ^ 3).data);
}

TEST_F(Inline, inputs_that_make_no_sense_end_the_world) {
  n.expect_refused(n.ready_with(0, slot, {input(1, 1)}));  // Another rank's.
  n.expect_refused(n.ready_with(1, slot, {input(1, 1, kBytes + 1)}));
  n.expect_refused(n.ready_with(2, slot, {input(2, 1), input(2, 1)}));
}

TEST_F(Inline, inputs_of_what_is_never_inline_end_the_world) {
  n.expect_refused(n.ask_with(0, operation(OpType::kBroadcast, "b", {4}), {input(0, 1)}));
  n.expect_refused(n.ask_with(0, in_group(allreduce("c"), "g", 2), {input(0, 1)}));
  n.expect_refused(n.ask_with(0, allreduce("d", {1 << 20}), {input(0, 1, 4 << 20)}));
}

TEST(InlineElsewhere, where_nobody_combines_or_horovods_rule_holds_it_is_run) {
  SequencerOptions declines = combining(2);
  declines.combine_inline = [](const Signature&,
                               const std::vector<std::int32_t>&,
                               std::span<const std::byte>,
                               std::span<std::byte>) { return false; };
  SequencerOptions horovod = combining(2);
  horovod.fusion = FusionRule::kHorovod;
  horovod.horovod_cycle = Duration::zero();
  for (const SequencerOptions& options : {world_of(2), declines, horovod}) {
    Negotiation n(options);
    for (int rank = 0; rank < 2; ++rank) {
      n.expect_ok(n.ask_with(rank, allreduce("a"), {input(rank, 1)}));
    }
    EXPECT_TRUE(n.run_one().result.empty());
  }
}

TEST(MayBeInline, small_dense_all_reduces_of_host_memory) {
  const auto may = [](const Signature& s, std::size_t members = 2) {
    return may_be_inline(s, members, 4096);
  };
  EXPECT_TRUE(may(allreduce("a", {1024})));
  EXPECT_FALSE(may(allreduce("a", {1025})));
  EXPECT_FALSE(may(allreduce("a", {0})));
  EXPECT_FALSE(may(allreduce("a"), 1));
  EXPECT_TRUE(may(allreduce("a", {1024}), 16));  // 64 KiB together,
  EXPECT_FALSE(may(allreduce("a", {1024}), 17));
  EXPECT_TRUE(may(allreduce("a", {1}), 10'000));
  EXPECT_FALSE(may_be_inline(allreduce("a"), 2, 0));
  for (const auto change : {+[](Signature& s) { s.memory = MemoryKind::kCuda; },
                            +[](Signature& s) { s.reduce_op = ReduceOp::kAdasum; },
                            +[](Signature& s) { s.compression = CompressionSpec(); },
                            +[](Signature& s) { s.op = OpType::kAllgather; }}) {
    Signature s = allreduce("a");
    change(s);
    EXPECT_FALSE(may(s));
  }
}

}  // namespace
}  // namespace lightcc::sequencer_inline_test
