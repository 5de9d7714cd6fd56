// What is in flight: names, handles, and how everything ends.
#include "lightcc/engine/operation_table.hpp"

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::operation_table_test {
namespace {

std::vector<Operation> operations(const std::vector<std::string>& names,
                                  std::uint32_t process_set = 0) {
  std::vector<Operation> all(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    all[i].name = names[i];
    all[i].request.signature.process_set = process_set;
    all[i].request.signature.shape = {3};
    all[i].input.shape = {3};
  }
  return all;
}

/// All-reduces called `names`, each for itself.
Result<Handle> add(OperationTable& table,
                   const std::vector<std::string>& names,
                   std::uint32_t process_set = 0) {
  return table.add(operations(names, process_set), Grouping::kNone);
}

std::string name_of(const InFlight* operation) {
  return operation->signature().name;
}

InFlight* find(OperationTable& table, const std::string& name) {
  return table.find(0, "allreduce." + name);
}

Outcome outcome(std::int32_t value) {
  Outcome result;
  result.value = value;
  return result;
}

TEST(OperationTable, new_operations_are_taken_once_and_in_order) {
  OperationTable table;
  EXPECT_TRUE(table.empty());
  EXPECT_FALSE(table.has_new());
  ASSERT_TRUE(add(table, {"b", "a"}).ok());
  ASSERT_TRUE(add(table, {"c"}).ok());
  EXPECT_TRUE(table.has_new());
  std::vector<std::string> names;
  for (const InFlight* operation : table.take_new()) {
    names.push_back(name_of(operation));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"allreduce.b", "allreduce.a", "allreduce.c"}));
  EXPECT_FALSE(table.has_new());
  EXPECT_TRUE(table.take_new().empty());
  EXPECT_FALSE(table.empty());
}

TEST(OperationTable, a_name_in_flight_refuses_the_whole_handle) {
  OperationTable table;
  ASSERT_TRUE(add(table, {"a"}).ok());
  for (const auto& names : {std::vector<std::string>{"new", "a"}, {"twice", "twice"}}) {
    const auto refused = add(table, names);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("with the same name as another tensor that is "
                                              "currently being processed"),
              std::string::npos);
    EXPECT_EQ(find(table, names[0] == "new" ? "new" : "twice"), nullptr);
  }
  EXPECT_EQ(table.take_new().size(), 1U);
  EXPECT_TRUE(add(table, {"new"}).ok());
  EXPECT_TRUE(add(table, {"a"}, 1).ok()) << "another set is another name";
}

TEST(OperationTable, memory_in_flight_refuses_the_whole_handle_until_it_has_ended) {
  OperationTable table;
  float memory = 0;
  const auto writing = [&memory](std::size_t count) {
    std::vector<Operation> all(count);
    for (Operation& operation : all) {
      operation.input = {.data = &memory};
      operation.output = operation.input;
    }
    return all;
  };
  const auto refused = table.add(writing(2), Grouping::kOneName);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("noname.0_2of2' has memory that"), std::string::npos);
  EXPECT_NE(refused.status().message().find("'noname.0', which is in flight"), std::string::npos);
  ASSERT_TRUE(table.add(writing(1), Grouping::kNone).ok());
  ASSERT_EQ(table.take_new().size(), 1U);
  EXPECT_FALSE(table.add(writing(1), Grouping::kNone).ok());
  table.complete(*table.find(0, "noname.0"), {}, {});
  EXPECT_TRUE(table.add(writing(1), Grouping::kNone).ok()) << "and it is number 1";
  EXPECT_NE(table.find(0, "noname.1"), nullptr);
  table.fail_all(Status(ErrorCode::kShutDown, "over"));
}

TEST(OperationTable, a_name_is_free_again_when_its_operation_has_ended) {
  OperationTable table;
  ASSERT_TRUE(add(table, {"a"}).ok());
  table.complete(*table.take_new()[0], {}, {});
  EXPECT_EQ(find(table, "a"), nullptr);
  EXPECT_TRUE(table.empty());
  EXPECT_TRUE(add(table, {"a"}).ok());
}

TEST(OperationTable, a_handle_is_done_with_its_last_operation_and_keeps_the_first_error) {
  OperationTable table;
  const Handle state = add(table, {"a", "b", "c"}).value();
  table.complete(*find(table, "c"), {}, outcome(30));
  table.complete(*find(table, "a"), Status(ErrorCode::kMismatch, "first"), {});
  EXPECT_FALSE(state->done.load());
  table.complete(*find(table, "b"), Status(ErrorCode::kMismatch, "second"), outcome(20));
  EXPECT_TRUE(state->done.load());
  EXPECT_EQ(state->status.message(), "first");
  ASSERT_EQ(state->outcomes.size(), 3U);
  EXPECT_EQ(state->outcomes[1].value, 20);
  EXPECT_EQ(state->outcomes[2].value, 30);
  EXPECT_EQ(table.completed(), 3U);
  EXPECT_EQ(table.payload_bytes(), 3U * 3 * 4);
}

TEST(OperationTable, a_handle_of_nothing_is_done_at_once) {
  OperationTable table;
  EXPECT_TRUE(add(table, {}).value()->done.load());
}

TEST(OperationTable, an_operation_that_ends_before_it_was_taken_is_not_taken) {
  OperationTable table;
  ASSERT_TRUE(add(table, {"gone", "stays"}).ok());
  table.complete(*find(table, "gone"), Status(ErrorCode::kMismatch, "removed"), {});
  EXPECT_TRUE(table.has_new());
  const auto taken = table.take_new();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(name_of(taken[0]), "allreduce.stays");
}

TEST(OperationTable, fail_all_ends_everything_now_and_later_with_the_first_error) {
  OperationTable table;
  const auto taken = add(table, {"taken", "too"}).value();
  (void)table.take_new();
  const auto fresh = add(table, {"fresh"}).value();
  table.fail_all(Status(ErrorCode::kPeerFailed, "rank 2 died", 2));
  table.fail_all(Status(ErrorCode::kShutDown, "too late"));
  for (const auto& state : {taken, fresh}) {
    EXPECT_TRUE(state->done.load());
    EXPECT_EQ(state->status.code(), ErrorCode::kPeerFailed);
    EXPECT_EQ(state->status.rank(), 2);
  }
  EXPECT_TRUE(table.empty());
  EXPECT_FALSE(table.has_new());
  EXPECT_TRUE(table.take_new().empty());
  EXPECT_EQ(add(table, {"later"}).status().message(), "rank 2 died");
  EXPECT_EQ(table.error().code(), ErrorCode::kPeerFailed);
}

TEST(OperationTable, what_repeats_comes_back_under_its_name_with_other_memory) {
  OperationTable table;
  const auto state = std::make_shared<HandleState>();
  state->repeats = true;
  std::array<float, 3> input{};
  std::array<float, 3> output{};
  const auto repeat = [&] { return table.repeat(state, input.data(), output.data()); };
  ASSERT_TRUE(table.add(operations({"a"}), Grouping::kNone, state).ok());
  EXPECT_EQ(repeat().code(), ErrorCode::kInvalidArgument) << "it is under way";
  table.complete(*find(table, "a"), {}, {});
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(repeat().ok());
    EXPECT_FALSE(state->done.load());
    InFlight* const again = find(table, "a");
    EXPECT_EQ(table.take_new(), std::vector<InFlight*>{again});
    EXPECT_EQ(again->operation.input.data, input.data());
    EXPECT_EQ(again->operation.output->data, output.data());
    EXPECT_FALSE(add(table, {"a"}).ok()) << "its name is in flight";
    table.complete(*again, Status(ErrorCode::kMismatch, "apart"), {});
    EXPECT_EQ(state->status.code(), ErrorCode::kMismatch);
    EXPECT_TRUE(table.empty());
  }
  ASSERT_TRUE(add(table, {"a"}).ok());
  EXPECT_EQ(repeat().code(), ErrorCode::kInvalidArgument) << "another one has its name";
  table.complete(*find(table, "a"), {}, {});
  auto writer = operations({"w"});
  writer[0].input = {.data = input.data(), .shape = {3}};
  writer[0].output = writer[0].input;
  ASSERT_TRUE(table.add(writer, Grouping::kNone).ok());
  EXPECT_NE(repeat().message().find("which is in flight, writes"), std::string::npos);
  table.complete(*find(table, "w"), {}, {});
  ASSERT_TRUE(repeat().ok());
  EXPECT_TRUE(state->status.ok());
  table.fail_all(Status(ErrorCode::kPeerFailed, "rank 2 died", 2));
  EXPECT_EQ(state->status.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(repeat().code(), ErrorCode::kPeerFailed);
}

TEST(OperationTable, a_waiting_thread_is_woken_by_completion_and_by_notify) {
  OperationTable table;
  const auto state = add(table, {"a"}).value();
  std::thread waiter([&] {
    while (!state->done.load()) {
      table.wait_for_change(*state, std::chrono::hours(1));
    }
  });
  table.notify();
  table.complete(*find(table, "a"), {}, {});
  waiter.join();
  table.wait_for_change(*state, std::chrono::hours(1));  // Done: returns at once.
  EXPECT_TRUE(state->status.ok());
}

TEST(OperationTable, numbers_of_unnamed_operations_are_taken_by_what_was_accepted) {
  OperationTable table(1);
  const auto unnamed = [](std::size_t count) { return std::vector<Operation>(count); };
  ASSERT_TRUE(table.add(unnamed(2), Grouping::kNone).ok());
  std::vector<Operation> taken(1);
  taken[0].name = "2";
  taken[0].sequence = "noname";
  ASSERT_TRUE(table.add(taken, Grouping::kNone).ok());
  EXPECT_FALSE(table.add(unnamed(1), Grouping::kNone).ok()) << "that name is in flight";
  table.complete(*table.find(0, "noname.2"), {}, {});
  ASSERT_TRUE(table.add(unnamed(2), Grouping::kOneName).ok());
  std::vector<Operation> sends(1);
  sends[0].request.signature.op = OpType::kSend;
  sends[0].request.signature.root_or_peer = 4;
  ASSERT_TRUE(table.add(sends, Grouping::kNone).ok());
  std::vector<std::string> names;
  for (const InFlight* operation : table.take_new()) {
    names.push_back(name_of(operation));
    EXPECT_TRUE(operation->signature().is_automatic);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "noname.0", "noname.1", "noname.2", "noname.2_2of2", "sendrecv.1to4.noname.0"}));
}

// What a receive from `source` is called, and on which mailbox it is asked for.
struct Receiver {
  const InFlight* receive(int source, const std::string& sequence = "") {
    std::vector<Operation> one(1);
    one[0].request.signature.op = OpType::kRecv;
    one[0].request.signature.root_or_peer = source;
    one[0].from_any = source == kAnySource;
    one[0].sequence = sequence;
    EXPECT_TRUE(table.add(std::move(one), Grouping::kNone).ok());
    return table.take_new().front();
  }
  OperationTable table{3};
};

TEST(OperationTable, receives_behind_one_from_any_source_are_open_until_all_have_a_source) {
  Receiver r;
  EXPECT_EQ(name_of(r.receive(2)), "sendrecv.2to3.noname.0");
  const InFlight* any = r.receive(kAnySource);
  EXPECT_EQ(name_of(any), "sendrecv.to3.noname.0");
  EXPECT_EQ(any->signature().mailbox, "3.");
  const InFlight* behind = r.receive(2);
  EXPECT_EQ(name_of(behind), "sendrecv.to3.noname.1");
  EXPECT_EQ(behind->signature().mailbox, "3.");
  EXPECT_EQ(behind->signature().root_or_peer, 2);
  const InFlight* apart = r.receive(2, "t7");
  EXPECT_EQ(name_of(apart), "sendrecv.2to3.t7.noname.0");
  EXPECT_TRUE(apart->signature().mailbox.empty());
  const auto name = [&](const InFlight* operation, const std::string& text) {
    return r.table.name_receive(*r.table.find(0, name_of(operation)), 2, text);
  };
  ASSERT_TRUE(name(any, "sendrecv.2to3.noname.1").ok());
  EXPECT_EQ(any->signature().root_or_peer, 2);
  EXPECT_FALSE(any->signature().is_open_receive());
  EXPECT_EQ(r.table.find(0, "sendrecv.2to3.noname.1"), any);
  EXPECT_EQ(r.table.find(0, "sendrecv.to3.noname.0"), nullptr);
  EXPECT_EQ(name_of(r.receive(2)), "sendrecv.to3.noname.2");
  EXPECT_EQ(name(behind, "sendrecv.2to3.noname.0").code(), ErrorCode::kPeerFailed) << "taken";
  ASSERT_TRUE(name(behind, "sendrecv.2to3.noname.2").ok());
  r.table.complete(*r.table.find(0, "sendrecv.to3.noname.2"), {}, {});  // Without a message.
  EXPECT_EQ(name_of(r.receive(2)), "sendrecv.2to3.noname.3");
  r.table.complete(*r.table.find(0, "sendrecv.2to3.noname.1"), {}, {});
  EXPECT_EQ(r.table.find(0, "sendrecv.2to3.noname.1"), nullptr);
}

TEST(OperationTable, a_join_lets_numbers_begin_again) {
  OperationTable table;
  ASSERT_TRUE(table.add(std::vector<Operation>(1), Grouping::kNone).ok());
  table.complete(*table.find(0, "noname.0"), {}, {});
  std::vector<Operation> join(1);
  join[0].request.signature.op = OpType::kJoin;
  ASSERT_TRUE(table.add(join, Grouping::kNone).ok());
  table.complete(*table.find(0, "join"), {}, {});
  ASSERT_TRUE(table.add(std::vector<Operation>(1), Grouping::kNone).ok());
  EXPECT_NE(table.find(0, "noname.0"), nullptr);
}

TEST(OperationTable, callbacks_are_handed_out_once_whatever_the_end) {
  OperationTable table;
  int called = 0;
  const Handle fine = add(table, {"a"}).value();
  const Handle failed = add(table, {"b"}).value();
  EXPECT_TRUE(table.call_when_done(*fine, [&] { called += 1; }));
  EXPECT_TRUE(table.call_when_done(*failed, [&] { called += 10; }));
  EXPECT_FALSE(table.has_callbacks());
  table.complete(*find(table, "a"), {}, {});
  EXPECT_TRUE(table.has_callbacks());
  table.fail_all(Status(ErrorCode::kPeerFailed, "gone"));
  while (const auto callback = table.take_callback()) {
    callback();
  }
  EXPECT_EQ(called, 11);
  EXPECT_FALSE(table.has_callbacks());
  EXPECT_FALSE(table.call_when_done(*fine, [&] { called += 100; })) << "done already";
}

}  // namespace
}  // namespace lightcc::operation_table_test
