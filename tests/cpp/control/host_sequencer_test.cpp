// A leader that decides for the process sets whose ranks are all on its host.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/control_plane.hpp"

#include "control/negotiation.hpp"

namespace lightcc::host_sequencer_test {
namespace {

using testing::allreduce;
using testing::in_set;
using testing::operation;

const TimePoint kStart{std::chrono::hours(1)};
constexpr std::uint32_t kSet = 1;

// Rank 2, which leads rank 3 of its host and rank 4 of another one; set 1 has ranks 2 and 3.
class HostSequencer : public ::testing::Test {
 protected:
  HostSequencer() : leader_(position(), kStart) {
    hear(AddProcessSet{kSet, "add", {2, 3}});
    (void)leader_.take_actions();
  }

  static ControlOptions position() {
    ControlOptions options;
    options.rank = 2;
    options.parent = ControlPeer{0, true};
    options.children = {{3, false}, {4, true}};
    options.is_networked = true;
    options.sequencer.world_size = 5;
    options.process_sets = ProcessSetTable(5);
    options.tree_parents = {-1, 0, 0, 2, 2};
    return options;
  }

  void hear(const Command& command) {
    leader_.on_frame(kParentLink, std::vector<Command>{command}, kStart);
    (void)leader_.take_frames();
  }
  void own_ask(const Signature& s) {
    leader_.submit({s, {}, {}}, key_of(s.process_set, s.name), ++token_);
  }
  void child_says(const Report::What& what) {
    leader_.on_frame(0, std::vector<Report>{{3, what}}, kStart);
  }
  void both_ask(const Signature& s) {
    own_ask(s);
    child_says(Request{s, {}, {}});
  }
  /// What went to the parent: numbers of reports. Commands are taken to be for the child here.
  std::size_t reports_up() {
    std::size_t count = 0;
    leader_.advance(kStart);
    for (const OutgoingFrame& frame : leader_.take_frames()) {
      if (const auto* reports = std::get_if<std::vector<Report>>(&frame.frame)) {
        count += reports->size();
      } else if (const auto* commands = std::get_if<std::vector<Command>>(&frame.frame)) {
        EXPECT_TRUE(frame.goes_to(0));
        EXPECT_FALSE(frame.goes_to(1));
        commands_.insert(commands_.end(), commands->begin(), commands->end());
      }
    }
    return count;
  }
  std::vector<RunBucket> buckets() {
    std::vector<RunBucket> found;
    for (ControlAction& action : leader_.take_actions()) {
      if (auto* bucket = std::get_if<RunBucket>(&action)) {
        found.push_back(std::move(*bucket));
      }
    }
    return found;
  }

  ControlPlane leader_;
  OperationToken token_ = 0;
  std::vector<Command> commands_;
};

TEST_F(HostSequencer, announces_what_its_ranks_ask_for_and_reports_the_rest) {
  both_ask(in_set(allreduce("a"), kSet));
  EXPECT_EQ(reports_up(), 0U);
  ASSERT_EQ(commands_.size(), 1U);
  const auto& execute = std::get<Execute>(commands_[0]);
  EXPECT_EQ(execute.tensors[0].slot, kFirstHostSlot);
  EXPECT_EQ(buckets().size(), 1U);
  leader_.on_bucket_done(kSet, 0, kStart);

  own_ask(in_set(allreduce("a"), kSet));
  child_says(ReadySlot{kFirstHostSlot});
  EXPECT_EQ(reports_up(), 0U);
  EXPECT_EQ(buckets().size(), 1U);
  leader_.on_bucket_done(kSet, 0, kStart);

  child_says(Request{allreduce("a"), {}, {}});  // In the world's set.
  own_ask(allreduce("b"));
  leader_.on_frame(1, std::vector<Report>{{4, Request{allreduce("a"), {}, {}}}}, kStart);
  own_ask(allreduce("a"));
  EXPECT_GE(reports_up(), 1U);
  EXPECT_TRUE(buckets().empty());
}

TEST_F(HostSequencer, a_rank_that_joined_is_not_waited_for_and_its_join_comes_last) {
  for (const char* name : {"a", "b", "c"}) {  // Two are announced for the lane; one waits.
    both_ask(in_set(operation(OpType::kAllgather, name, {4}), kSet));
  }
  child_says(Request{operation(OpType::kJoin, kJoinName), {}, {}});
  EXPECT_EQ(reports_up(), 0U);
  EXPECT_EQ(buckets().size(), 2U);
  leader_.on_bucket_done(kSet, 0, kStart);
  EXPECT_EQ(reports_up(), 0U);
  EXPECT_EQ(reports_up(), 1U);
  own_ask(in_set(allreduce("alone"), kSet));
  (void)reports_up();
  leader_.on_bucket_done(kSet, 0, kStart);
  (void)reports_up();
  EXPECT_EQ(buckets().size(), 2U);
  hear(AllJoined{3});
  own_ask(in_set(allreduce("with both"), kSet));
  (void)reports_up();
  EXPECT_TRUE(buckets().empty());
}

TEST_F(HostSequencer, what_waits_in_a_removed_set_fails) {
  own_ask(in_set(allreduce("waits"), kSet));
  EXPECT_EQ(reports_up(), 0U);
  hear(RemoveProcessSet{kSet, "remove"});
  const auto actions = leader_.take_actions();
  const auto* failed = std::get_if<CompleteOperation>(&actions.at(0));
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->operation, 1U);
  EXPECT_EQ(failed->status.code(), ErrorCode::kMismatch);
  hear(AddProcessSet{kSet, "add", {2, 3}});
  both_ask(in_set(allreduce("waits"), kSet));
  EXPECT_EQ(reports_up(), 0U);
  EXPECT_EQ(buckets().size(), 1U);
}

TEST_F(HostSequencer, a_report_that_makes_no_sense_is_trouble) {
  child_says(Request{in_set(allreduce("twice"), kSet), {}, {}});
  child_says(Request{in_set(allreduce("twice"), kSet), {}, {}});
  leader_.advance(kStart);
  EXPECT_TRUE(leader_.is_suspecting());
}

TEST_F(HostSequencer, announces_nothing_once_the_world_closes) {
  hear(ShutDown{0});
  both_ask(in_set(allreduce("late"), kSet));
  EXPECT_EQ(reports_up(), 0U);
  EXPECT_TRUE(buckets().empty());
}

}  // namespace
}  // namespace lightcc::host_sequencer_test
