// Open receives: which send each of them takes, and what the ranks are told.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "control/negotiation.hpp"

namespace lightcc::sequencer_any_source_test {
namespace {

using std::chrono::seconds;
using testing::allreduce;
using testing::in_set;
using testing::Negotiation;
using testing::operation;
using testing::with_peer;
using testing::world_of;

Signature send(int number, int from, int to, const std::string& mailbox = "c") {
  const std::string name =
      std::to_string(from) + "to" + std::to_string(to) + "." + std::to_string(number);
  Signature s = with_peer(operation(OpType::kSend, name, {5}), to);
  s.mailbox = std::to_string(to) + "." + mailbox;
  return s;
}

Signature open_receive(const std::string& name,
                       int by,
                       int source = kAnySource,
                       const std::string& mailbox = "c") {
  Signature s = with_peer(operation(OpType::kRecv, name, {5}), source);
  s.mailbox = std::to_string(by) + "." + mailbox;
  return s;
}

/// What there is now must be `match`, and then the message itself.
void expect_message(Negotiation& n, const MatchReceive& match, int to) {
  const auto commands = n.sequencer.take_commands(n.now);
  ASSERT_EQ(commands.size(), 2U);
  EXPECT_EQ(commands[0], Command(match));
  const auto& execute = std::get<Execute>(commands[1]);
  ASSERT_EQ(execute.tensors.size(), 1U);
  EXPECT_EQ(execute.tensors[0].signature->name, match.send);
  EXPECT_EQ(execute.tensors[0].per_member, (std::vector<std::int64_t>{match.source, to}));
  n.sequencer.on_bucket_done(execute.process_set, execute.lane, n.now);
}

TEST(SequencerAnySource, whichever_comes_first_waits_for_the_other) {
  for (const bool send_first : {true, false}) {
    Negotiation n(world_of(4));
    for (const bool sends : {send_first, !send_first}) {
      n.expect_silence();
      n.expect_ok(sends ? n.ask(1, send(0, 1, 3)) : n.ask(3, open_receive("r", 3)));
    }
    expect_message(n, {0, "r", "1to3.0", 1}, 3);
    EXPECT_FALSE(n.sequencer.has_pending());
  }
}

TEST(SequencerAnySource, the_oldest_send_is_taken_and_a_named_source_is_kept) {
  Negotiation n(world_of(4));
  n.expect_ok(n.ask(2, send(0, 2, 3)));
  n.expect_ok(n.ask(1, send(0, 1, 3)));
  n.expect_ok(n.ask(1, send(1, 1, 3)));
  n.expect_ok(n.ask(3, open_receive("r0", 3, 1)));
  expect_message(n, {0, "r0", "1to3.0", 1}, 3);
  n.expect_ok(n.ask(3, open_receive("r1", 3)));
  expect_message(n, {0, "r1", "2to3.0", 2}, 3);
  n.expect_ok(n.ask(3, open_receive("r2", 3)));
  expect_message(n, {0, "r2", "1to3.1", 1}, 3);
}

TEST(SequencerAnySource, receives_take_messages_in_their_order) {
  Negotiation n(world_of(4));
  n.expect_ok(n.ask(3, open_receive("r0", 3)));
  n.expect_ok(n.ask(3, open_receive("r1", 3, 2)));
  n.expect_ok(n.ask(3, open_receive("r2", 3)));
  n.expect_ok(n.ask(2, send(0, 2, 3)));
  expect_message(n, {0, "r0", "2to3.0", 2}, 3);
  n.expect_ok(n.ask(1, send(0, 1, 3)));
  expect_message(n, {0, "r2", "1to3.0", 1}, 3);
  n.expect_ok(n.ask(2, send(1, 2, 3)));
  expect_message(n, {0, "r1", "2to3.1", 2}, 3);
}

TEST(SequencerAnySource, a_send_that_was_asked_for_by_name_is_not_taken) {
  Negotiation n(world_of(3));
  n.expect_ok(n.ask(2, with_peer(operation(OpType::kRecv, "1to2.0", {5}), 1)));
  n.expect_ok(n.ask(2, open_receive("r", 2)));
  n.expect_ok(n.ask(1, send(0, 1, 2)));
  EXPECT_EQ(n.run_one().signature->name, "1to2.0");
  n.expect_ok(n.ask(1, send(1, 1, 2)));
  expect_message(n, {0, "r", "1to2.1", 1}, 2);
  // And one that is asked for by name later than it came.
  n.expect_ok(n.ask(1, send(2, 1, 2)));
  n.expect_ok(n.ask(2, with_peer(operation(OpType::kRecv, "1to2.2", {5}), 1)));
  EXPECT_EQ(n.run_one().signature->name, "1to2.2");
  n.expect_ok(n.ask(2, open_receive("r", 2)));
  n.expect_silence();
}

TEST(SequencerAnySource, mailboxes_receivers_and_process_sets_are_kept_apart) {
  Negotiation n(world_of(4));
  const std::uint32_t odd = n.add_set({1, 3});
  n.expect_ok(n.ask(1, send(0, 1, 3, "other")));
  n.expect_ok(n.ask(1, in_set(send(0, 1, 3), odd)));
  n.expect_ok(n.ask(1, send(0, 1, 2)));
  Signature named = send(1, 1, 3);
  named.mailbox.clear();
  n.expect_ok(n.ask(1, named));
  n.expect_ok(n.ask(3, open_receive("r", 3)));
  n.expect_silence();
  n.expect_ok(n.ask(3, in_set(open_receive("odd", 3), odd)));
  expect_message(n, {odd, "odd", "1to3.0", 1}, 3);
}

TEST(SequencerAnySource, a_mismatch_is_told_to_both_under_the_name_of_the_send) {
  Negotiation n(world_of(3));
  Signature receive = open_receive("r", 2);
  receive.dtype = DataType::kFloat64;
  n.expect_ok(n.ask(2, receive));
  n.expect_ok(n.ask(1, send(0, 1, 2)));
  const auto commands = n.sequencer.take_commands(n.now);
  ASSERT_EQ(commands.size(), 2U);
  EXPECT_EQ(commands[0], Command(MatchReceive{0, "r", "1to2.0", 1}));
  const auto& failed = std::get<FailOperation>(commands[1]);
  EXPECT_EQ(failed.name, "1to2.0");
  EXPECT_NE(failed.message.find("Mismatched data types"), std::string::npos) << failed.message;
  EXPECT_FALSE(n.sequencer.has_pending());
}

TEST(SequencerAnySource, it_fails_when_nobody_is_left_to_send) {
  Negotiation n(world_of(3));
  n.expect_ok(n.join(0));
  n.expect_ok(n.ask(2, open_receive("r", 2)));
  n.expect_silence();
  n.expect_ok(n.join(1));
  n.expect_mismatch("r", "RECV is not supported with Join");
  n.expect_ok(n.join(2));
  EXPECT_EQ(n.one<AllJoined>().last_rank, 2);
  n.expect_ok(n.ask(1, send(0, 1, 2)));
  n.expect_silence();
}

TEST(SequencerAnySource, what_waits_goes_with_its_process_set) {
  Negotiation n(world_of(3));
  const std::uint32_t set = n.add_set({1, 2});
  n.expect_ok(n.ask(2, in_set(open_receive("r", 2), set)));
  n.expect_ok(n.ask(1, in_set(send(0, 1, 2, "unheard"), set)));
  n.remove_set(set);
  EXPECT_EQ(n.one<RemoveProcessSet>().id, set);
  EXPECT_EQ(n.add_set({1, 2}), set);
  n.expect_ok(n.ask(1, in_set(send(0, 1, 2), set)));
  n.expect_silence();
}

TEST(SequencerAnySource, a_stall_names_all_who_could_have_sent) {
  Negotiation n(world_of(4));
  n.expect_ok(n.ask(2, open_receive("r", 2)));
  const auto report = n.sequencer.check_stalls(n.now + seconds(61));
  ASSERT_EQ(report.warnings.size(), 1U);
  EXPECT_NE(report.warnings[0].find(
                "RECV 'r' has been stalled for 61 s: none of the ranks [0, 1, 3] has sent it."),
            std::string::npos)
      << report.warnings[0];
}

TEST(SequencerAnySource, nonsense_is_refused) {
  Negotiation n(world_of(3));
  for (const int peer : {-2, 1, 3}) {  // Rank 1 itself is none either.
    n.expect_refused(n.ask(1, open_receive("r", 1, peer)));
  }
  Signature nobody = send(0, 1, 2);
  nobody.root_or_peer = kAnySource;
  n.expect_refused(n.ask(1, nobody));
  const std::uint32_t alone = n.add_set({1});
  n.expect_refused(n.ask(1, in_set(open_receive("r", 1), alone)));
  n.expect_ok(n.ask(1, open_receive("r", 1)));
  n.expect_refused(n.ask(1, open_receive("r", 1)));
  n.expect_refused(n.ask(2, open_receive("r", 1)));
  n.expect_refused(n.ask(2, allreduce("r")));
  n.expect_silence();
}

}  // namespace
}  // namespace lightcc::sequencer_any_source_test
