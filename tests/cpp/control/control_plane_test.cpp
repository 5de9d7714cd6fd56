// The control plane of one rank as a machine: what it is told, and what it then says and does.
#include "lightcc/control/control_plane.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "control/negotiation.hpp"

namespace lightcc::control_plane_test {
namespace {

using std::chrono::milliseconds;
using testing::allreduce;
using testing::operation;

const TimePoint kStart{std::chrono::hours(1)};

Status gone(int rank) {
  return Status(ErrorCode::kPeerFailed, "rank " + std::to_string(rank) + " is gone", rank);
}

// A tree of three hosts with two ranks each: 0 leads 1, 2 leads 3, 4 leads 5; 2 and 4 are children
// of 0.
ControlOptions position_of(int rank) {
  ControlOptions options;
  options.rank = rank;
  options.is_networked = true;
  options.peer_timeout = std::chrono::seconds(4);
  options.sequencer.world_size = 6;
  options.process_sets = ProcessSetTable(6);
  options.tree_parents = {-1, 0, 0, 2, 0, 4};
  if (rank == 0) {
    options.children = {{1, false}, {2, true}, {4, true}};
    options.watched = {1};
  } else if (rank % 2 == 0) {
    options.parent = ControlPeer{0, true};
    options.children = {{rank + 1, false}};
    options.watched = {rank + 1};
  } else {
    options.parent = ControlPeer{rank - 1, false};
    options.watched = {rank - 1};
  }
  return options;
}

ControlPlane machine(int rank) {
  return {position_of(rank), kStart};
}

void submit(ControlPlane& control, const Request& request, OperationToken operation) {
  control.submit(request, key_of(0, request.signature.name), operation);
}

/// The end of the world among the actions, or null.
std::optional<EndWorld> end_in(ControlPlane& control) {
  for (const ControlAction& action : control.take_actions()) {
    if (const auto* end = std::get_if<EndWorld>(&action)) {
      return *end;
    }
  }
  return std::nullopt;
}

/// The frames of one kind that are to be sent.
template <typename Kind>
std::vector<OutgoingFrame> frames_of(ControlPlane& control) {
  std::vector<OutgoingFrame> found;
  for (OutgoingFrame& frame : control.take_frames()) {
    if (std::holds_alternative<Kind>(frame.frame)) {
      found.push_back(std::move(frame));
    }
  }
  return found;
}

TEST(ControlPlaneTest, a_leader_relays_reports_and_commands) {
  ControlPlane leader = machine(2);
  const Request request{allreduce("a"), {}, {}};
  leader.on_frame(0, std::vector<Report>{{3, request}, {3, Leave{}}}, kStart);
  submit(leader, request, 7);
  leader.advance(kStart);
  const auto reports = frames_of<std::vector<Report>>(leader);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_TRUE(reports[0].to_parent);
  EXPECT_FALSE(reports[0].to_children);
  EXPECT_EQ(std::get<std::vector<Report>>(reports[0].frame).size(), 3U);
  EXPECT_EQ(leader.waiting_count(), 1U);

  Execute execute;
  execute.tensors.push_back({0, request.signature, {}});
  leader.on_frame(kParentLink, std::vector<Command>{execute}, kStart);
  const auto relayed = frames_of<std::vector<Command>>(leader);
  ASSERT_EQ(relayed.size(), 1U);
  EXPECT_TRUE(relayed[0].to_children);
  EXPECT_FALSE(relayed[0].to_parent);
  const auto actions = leader.take_actions();
  ASSERT_EQ(actions.size(), 1U);
  const auto& bucket = std::get<RunBucket>(actions[0]);
  ASSERT_EQ(bucket.tensors.size(), 1U);
  EXPECT_EQ(bucket.tensors[0].operation, 7U);
  EXPECT_EQ(leader.waiting_count(), 0U);
}

TEST(ControlPlaneTest, the_same_request_again_is_reported_by_slot) {
  ControlPlane member = machine(3);
  const Request request{allreduce("a"), {}, {}};
  submit(member, request, 7);
  member.advance(kStart);
  Execute execute;
  execute.tensors.push_back({0, request.signature, {}});
  member.on_frame(kParentLink, std::vector<Command>{execute}, kStart);
  (void)member.take_frames();
  (void)member.take_actions();
  submit(member, request, 8);
  member.advance(kStart);
  const auto reports = frames_of<std::vector<Report>>(member);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(std::get<std::vector<Report>>(reports[0].frame)[0], (Report{3, ReadySlot{0}}));
  execute.tensors[0].signature.reset();
  member.on_frame(kParentLink, std::vector<Command>{execute}, kStart);
  const auto actions = member.take_actions();
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(std::get<RunBucket>(actions[0]).tensors[0].operation, 8U);
}

TEST(ControlPlaneTest, a_matched_receive_goes_on_under_the_name_of_its_send) {
  Request receive{operation(OpType::kRecv, "open", {5}), {}, {}};
  receive.signature.mailbox = "3.c";
  const MatchReceive match{0, "open", "1to3.0", 1};
  Execute execute;
  execute.tensors.push_back({kNoSlot, operation(OpType::kSend, "1to3.0", {5}), {1, 3}});
  for (const int rank : {3, 5}) {  // The receiver, and a rank that has nothing to do with it.
    const bool receives = rank == 3;
    ControlPlane member = machine(rank);
    if (receives) {
      submit(member, receive, 7);
      member.advance(kStart);
    }
    member.on_frame(kParentLink, std::vector<Command>{match, execute}, kStart);
    const auto actions = member.take_actions();
    ASSERT_EQ(actions.size(), receives ? 2U : 0U);
    if (receives) {
      const auto& named = std::get<NameReceive>(actions[0]);
      EXPECT_EQ(named.operation, 7U);
      EXPECT_EQ(named.source, 1);
      EXPECT_EQ(named.name, "1to3.0");
      EXPECT_EQ(std::get<RunBucket>(actions[1]).tensors[0].operation, 7U);
    }
    EXPECT_EQ(member.waiting_count(), 0U);
    EXPECT_FALSE(member.is_over());
  }
}

TEST(ControlPlaneTest, a_receive_whose_message_is_expected_already_is_trouble) {
  ControlPlane member = machine(3);
  submit(member, {operation(OpType::kRecv, "open", {5}), {}, {}}, 7);
  submit(member, {operation(OpType::kRecv, "1to3.0", {5}), {}, {}}, 8);
  member.advance(kStart);
  member.on_frame(kParentLink, std::vector<Command>{MatchReceive{0, "open", "1to3.0", 1}}, kStart);
  EXPECT_TRUE(member.is_suspecting());
}

TEST(ControlPlaneTest, a_leader_makes_one_report_of_what_its_ranks_ask_for_alike) {
  ControlPlane leader = machine(2);
  const Request request{allreduce("a"), {}, {}};
  leader.on_frame(0, std::vector<Report>{{3, request}}, kStart);
  leader.advance(kStart);
  EXPECT_TRUE(leader.take_frames().empty());
  EXPECT_TRUE(leader.has_held());
  submit(leader, request, 7);
  leader.advance(kStart);
  const auto reports = frames_of<std::vector<Report>>(leader);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(std::get<std::vector<Report>>(reports[0].frame),
            (std::vector<Report>{{2, request, 2}}));
  leader.on_frame(kParentLink, std::vector<Command>{}, kStart);
  EXPECT_FALSE(leader.has_held());
}

TEST(ControlPlaneTest, a_parent_that_says_nothing_is_woken_once) {
  for (const bool is_late : {true, false}) {
    ControlPlane member = machine(1);
    member.tick(kStart, false, false);
    submit(member, {allreduce("a"), {}, {}}, 7);
    member.advance(kStart);
    EXPECT_EQ(frames_of<std::vector<Report>>(member).size(), 1U);
    ASSERT_TRUE(member.has_held());
    ASSERT_LT(member.deadline(), member.next_tick());
    const TimePoint late = member.deadline();
    if (!is_late) {
      member.on_frame(kParentLink, std::vector<Command>{}, kStart);
    }
    member.advance(late);
    const auto frames = frames_of<Heartbeat>(member);
    ASSERT_EQ(frames.size(), is_late ? 1U : 0U);
    if (is_late) {
      EXPECT_TRUE(frames[0].is_urgent);
      EXPECT_TRUE(frames[0].to_parent);
      EXPECT_FALSE(frames[0].to_children);
    }
    EXPECT_FALSE(member.has_held());
    member.advance(late + std::chrono::seconds(1));
    EXPECT_TRUE(frames_of<Heartbeat>(member).empty());
  }
}

TEST(ControlPlaneTest, a_leader_passes_on_what_stays_alone) {
  ControlPlane leader = machine(2);
  leader.on_frame(0, std::vector<Report>{{3, Request{allreduce("a"), {}, {}}}}, kStart);
  leader.advance(kStart);
  EXPECT_TRUE(leader.take_frames().empty());
  leader.tick(kStart, false, false);
  (void)leader.take_frames();
  ASSERT_LT(leader.deadline(), leader.next_tick());
  leader.advance(leader.deadline());
  const auto reports = frames_of<std::vector<Report>>(leader);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(std::get<std::vector<Report>>(reports[0].frame)[0].rank, 3U);
}

TEST(ControlPlaneTest, a_join_comes_after_what_the_rank_asked_for_and_is_not_waited_for) {
  ControlPlane leader = machine(2);
  const Request request{allreduce("a"), {}, {}};
  Request join{testing::operation(OpType::kJoin, kJoinName), {}, {}};
  leader.on_frame(0, std::vector<Report>{{3, request}, {3, join}}, kStart);
  leader.advance(kStart);
  const auto reports = frames_of<std::vector<Report>>(leader);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(std::get<std::vector<Report>>(reports[0].frame),
            (std::vector<Report>{{3, request}, {3, join}}));
  submit(leader, Request{allreduce("b"), {}, {}}, 7);
  leader.advance(kStart);
  EXPECT_EQ(frames_of<std::vector<Report>>(leader).size(), 1U) << "rank 3 will not ask for it";
}

TEST(ControlPlaneTest, rank_0_takes_a_leaders_report_for_all_its_ranks) {
  ControlPlane root = machine(0);
  const Request request{allreduce("a"), {}, {}};
  submit(root, request, 7);
  root.on_frame(0, std::vector<Report>{{1, request}}, kStart);
  root.on_frame(1, std::vector<Report>{{2, request, 3}}, kStart);
  root.advance(kStart);
  EXPECT_TRUE(frames_of<std::vector<Command>>(root).empty());
  root.on_frame(2, std::vector<Report>{{4, request, 4}}, kStart);
  root.advance(kStart);
  EXPECT_EQ(frames_of<std::vector<Command>>(root).size(), 1U);
  EXPECT_EQ(root.sequencer()->lateness(kStart).last_asked,
            (std::vector<std::uint64_t>{0, 0, 0, 0, 1, 0}));
}

TEST(ControlPlaneTest, a_report_of_a_subtree_that_makes_no_sense_ends_the_world) {
  const Request request{allreduce("a"), {}, {}};
  for (const Report& report : {Report{2, request, 5}, Report{99, request, 99}}) {
    ControlPlane root = machine(0);
    root.on_frame(1, std::vector<Report>{report}, kStart);
    root.advance(kStart);
    EXPECT_TRUE(root.is_suspecting() || root.is_over());
  }
}

TEST(ControlPlaneTest, the_death_of_a_member_ends_the_world_at_once_and_is_told_to_all) {
  ControlPlane leader = machine(2);
  leader.on_death(gone(3));
  const auto end = end_in(leader);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->status.rank(), 3);
  EXPECT_FALSE(end->is_in_order);
  const auto errors = frames_of<WorldError>(leader);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_TRUE(errors[0].to_parent);
  EXPECT_TRUE(errors[0].to_children);
  EXPECT_TRUE(errors[0].is_urgent);
}

TEST(ControlPlaneTest, an_error_is_passed_on_but_not_back) {
  ControlPlane root = machine(0);
  root.on_frame(1, WorldError{ErrorCode::kPeerFailed, 3, "rank 3 is gone"}, kStart);
  const auto errors = frames_of<WorldError>(root);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].except, 1);
  const auto end = end_in(root);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->status.rank(), 3);
  EXPECT_EQ(end->status.message(), "rank 3 is gone");
  root.on_frame(2, WorldError{ErrorCode::kPeerFailed, 5, "later"}, kStart);  // The first counts.
  EXPECT_FALSE(root.has_output());
}

TEST(ControlPlaneTest, the_end_of_a_leaders_link_is_blamed_unless_news_has_arrived_meanwhile) {
  for (const bool has_update : {false, true}) {
    ControlPlane root = machine(0);
    root.on_link_closed(1, gone(2), kStart);
    EXPECT_TRUE(root.is_suspecting());
    if (has_update) {
      root.on_frame(2, WorldError{ErrorCode::kPeerFailed, 3, "rank 3 is gone"}, kStart);
    }
    root.advance(kStart);
    const auto end = end_in(root);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->status.rank(), has_update ? 3 : 2);
  }
}

TEST(ControlPlaneTest, the_death_of_rank_0_is_known_by_its_link) {
  ControlPlane leader = machine(4);
  leader.on_link_closed(kParentLink, gone(0), kStart);
  leader.advance(kStart);
  const auto end = end_in(leader);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->status.rank(), 0);
}

TEST(ControlPlaneTest, a_closed_connection_is_blamed_only_after_news_had_time) {
  ControlPlane member = machine(5);
  member.on_trouble(gone(1), kStart);
  member.advance(kStart + milliseconds(299));
  EXPECT_FALSE(end_in(member).has_value());
  EXPECT_TRUE(member.is_suspecting());
  member.on_frame(
      kParentLink, WorldError{ErrorCode::kPeerFailed, 3, "late"}, kStart + milliseconds(300));
  EXPECT_EQ(end_in(member)->status.rank(), 3);

  ControlPlane alone = machine(5);
  alone.on_trouble(gone(1), kStart);
  alone.heard_from(4, kStart + std::chrono::seconds(2));
  alone.advance(kStart + std::chrono::seconds(3));
  EXPECT_EQ(end_in(alone)->status.rank(), 1);
}

TEST(ControlPlaneTest, who_has_been_silent_since_a_connection_closed_is_the_likelier_cause) {
  ControlPlane leader = machine(4);
  leader.heard_from(5, kStart + milliseconds(20));
  leader.on_trouble(gone(3), kStart + milliseconds(10));
  leader.advance(kStart + std::chrono::seconds(3));
  EXPECT_EQ(end_in(leader)->status.rank(), 0);  // Its last sign of life was before that.
}

TEST(ControlPlaneTest, a_connection_that_closes_within_one_host_is_believed_at_once) {
  ControlOptions options = position_of(1);
  options.is_networked = false;
  ControlPlane member(options, kStart);
  member.on_trouble(gone(0), kStart);
  EXPECT_EQ(end_in(member)->status.rank(), 0);
}

TEST(ControlPlaneTest, silence_counts_while_somebody_waits) {
  for (const bool is_busy : {false, true}) {
    ControlPlane leader = machine(4);
    for (int tick = 1; tick <= 6; ++tick) {
      const TimePoint now = kStart + std::chrono::seconds(tick);
      leader.heard_from(5, now);
      leader.tick(now, is_busy, false);
      EXPECT_EQ(leader.next_tick(),
                leader.is_over() ? leader.next_tick() : now + milliseconds(1000));
    }
    const auto end = end_in(leader);
    ASSERT_EQ(end.has_value(), is_busy);
    if (is_busy) {
      EXPECT_EQ(end->status.code(), ErrorCode::kTimeout);
      EXPECT_EQ(end->status.rank(), 0);
    }
  }
}

/// What the heartbeats of one tick say on the links of `control`.
std::map<LinkIndex, bool> told_waiting(ControlPlane& control, TimePoint now, bool is_busy) {
  (void)control.take_frames();
  control.tick(now, is_busy, false);
  std::map<LinkIndex, bool> reported;
  for (const OutgoingFrame& frame : control.take_frames()) {
    for (LinkIndex link = kParentLink; link < 3; ++link) {
      if (frame.goes_to(link) && std::holds_alternative<Heartbeat>(frame.frame)) {
        EXPECT_FALSE(reported.contains(link)) << "link " << link << " got two heartbeats";
        reported[link] = std::get<Heartbeat>(frame.frame).waits;
      }
    }
  }
  reported.erase(kParentLink);  // Rank 0 has none.
  return reported;
}

TEST(ControlPlaneTest, heartbeats_tell_everybody_but_its_source_that_somebody_waits) {
  using Told = std::map<LinkIndex, bool>;
  ControlPlane root = machine(0);
  EXPECT_EQ(told_waiting(root, kStart, false), (Told{{0, false}, {1, false}, {2, false}}));
  EXPECT_EQ(told_waiting(root, kStart, true), (Told{{0, true}, {1, true}, {2, true}}));
  root.on_frame(1, Heartbeat{true}, kStart);
  EXPECT_EQ(told_waiting(root, kStart, false), (Told{{0, true}, {1, false}, {2, true}}));
  root.on_frame(0, Heartbeat{true}, kStart);
  EXPECT_EQ(told_waiting(root, kStart, false), (Told{{0, true}, {1, true}, {2, true}}));
  root.on_frame(0, Heartbeat{false}, kStart);
  root.on_frame(1, Heartbeat{false}, kStart);
  EXPECT_EQ(told_waiting(root, kStart, false), (Told{{0, false}, {1, false}, {2, false}}));
}

TEST(ControlPlaneTest, a_silent_neighbour_is_blamed_for_those_who_wait_beyond_another) {
  for (const LinkIndex waiting : {1, 2}) {
    ControlPlane root = machine(0);
    root.on_frame(waiting, Heartbeat{true}, kStart);
    for (int second = 0; second <= 6; ++second) {
      const TimePoint now = kStart + std::chrono::seconds(second);
      root.heard_from(1, now);
      root.on_frame(1, Heartbeat{waiting == 1}, now);
      if (waiting == 2 && second == 0) {
        root.on_frame(2, Heartbeat{true}, now);  // Silent from now on, and nobody else waits.
      }
      root.tick(now, false, false);
    }
    const auto end = end_in(root);
    ASSERT_EQ(end.has_value(), waiting == 1) << "what a rank waited for is held against it";
    if (end.has_value()) {
      EXPECT_EQ(end->status.code(), ErrorCode::kTimeout);
      EXPECT_EQ(end->status.rank(), 4);
    }
  }
}

TEST(ControlPlaneTest, a_world_that_closes_runs_what_was_announced_first) {
  ControlPlane root = machine(0);
  root.on_frame(0, std::vector<Report>{{1, Leave{}}}, kStart);
  root.advance(kStart);
  const auto reported = frames_of<std::vector<Command>>(root);
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_TRUE(reported[0].is_urgent);
  EXPECT_TRUE(root.is_closing());
  EXPECT_FALSE(root.is_over());
  root.on_link_closed(1, gone(2), kStart);  // It was done earlier.
  root.on_death(gone(1));
  EXPECT_FALSE(root.is_over());
  root.on_quiet();
  const auto end = end_in(root);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->is_in_order);
  EXPECT_EQ(end->status.code(), ErrorCode::kShutDown);
  EXPECT_EQ(end->status.rank(), 1);
}

TEST(ControlPlaneTest, a_shutdown_that_comes_after_a_connection_closed_is_an_end_in_order) {
  ControlPlane leader = machine(2);
  leader.on_trouble(gone(5), kStart);
  leader.on_frame(kParentLink, std::vector<Command>{ShutDown{4}}, kStart);
  EXPECT_EQ(frames_of<std::vector<Command>>(leader).size(), 1U);  // For its member.
  const auto end = end_in(leader);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->is_in_order);
  EXPECT_EQ(end->status.rank(), 4);
}

TEST(ControlPlaneTest, what_does_not_finish_at_shutdown_is_an_error) {
  ControlPlane leader = machine(2);
  leader.on_frame(kParentLink, std::vector<Command>{ShutDown{0}}, kStart);
  leader.tick(kStart + std::chrono::seconds(5), true, false);
  EXPECT_EQ(end_in(leader)->status.code(), ErrorCode::kTimeout);
}

TEST(ControlPlaneTest, what_the_system_refuses_is_signed_by_the_rank_that_is_short) {
  ControlPlane leader = machine(2);
  leader.on_trouble(Status(ErrorCode::kSystem, "no memory"), kStart);
  const auto end = end_in(leader);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->status.rank(), 2);
  EXPECT_EQ(end->status.message(), "rank 2: no memory");
  const auto errors = frames_of<WorldError>(leader);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(std::get<WorldError>(errors[0].frame).message, "rank 2: no memory");
}

TEST(ControlPlaneTest, frames_of_the_wrong_direction_are_the_senders_fault) {
  ControlOptions options = position_of(2);
  options.is_networked = false;
  ControlPlane leader(options, kStart);
  leader.on_frame(0, std::vector<Command>{ShutDown{0}}, kStart);
  const auto end = end_in(leader);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->status.rank(), 3);
  EXPECT_NE(end->status.message().find("wrong direction"), std::string::npos);
}

TEST(ControlPlaneTest, after_the_end_nothing_is_taken_in) {
  ControlPlane leader = machine(2);
  leader.fail(gone(0));
  (void)leader.take_frames();
  (void)leader.take_actions();
  submit(leader, {allreduce("a"), {}, {}}, 1);
  leader.leave();
  leader.on_frame(0, std::vector<Report>{{3, Leave{}}}, kStart);
  leader.advance(kStart);
  leader.tick(kStart + std::chrono::hours(1), true, true);
  leader.fail(gone(1));
  EXPECT_FALSE(leader.has_output());
}

}  // namespace
}  // namespace lightcc::control_plane_test
