// What is in flight: names, handles, and how everything ends.
#include "lightcc/engine/operation_table.hpp"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::operation_table_test {
namespace {

std::vector<std::unique_ptr<Operation>> operations(const std::vector<std::string>& names,
                                                   std::uint32_t process_set = 0) {
  std::vector<std::unique_ptr<Operation>> all;
  for (const std::string& name : names) {
    all.push_back(std::make_unique<Operation>());
    all.back()->submission.name = name;
    all.back()->submission.process_set = process_set;
    all.back()->submission.shape = {3};
  }
  return all;
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
  ASSERT_TRUE(table.add(operations({"b", "a"})).ok());
  ASSERT_TRUE(table.add(operations({"c"})).ok());
  EXPECT_TRUE(table.has_new());
  std::vector<std::string> names;
  for (const Operation* operation : table.take_new()) {
    names.push_back(operation->submission.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"b", "a", "c"}));
  EXPECT_FALSE(table.has_new());
  EXPECT_TRUE(table.take_new().empty());
  EXPECT_FALSE(table.empty());
}

TEST(OperationTable, a_name_in_flight_refuses_the_whole_handle) {
  OperationTable table;
  ASSERT_TRUE(table.add(operations({"a"})).ok());
  for (const auto& names : {std::vector<std::string>{"new", "a"}, {"twice", "twice"}}) {
    const auto refused = table.add(operations(names));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("with the same name as another tensor that is "
                                              "currently being processed"),
              std::string::npos);
    EXPECT_EQ(table.find(0, names[0] == "new" ? "new" : "twice"), nullptr);
  }
  EXPECT_EQ(table.take_new().size(), 1U);
  EXPECT_TRUE(table.add(operations({"new"})).ok());
  EXPECT_TRUE(table.add(operations({"a"}, 1)).ok()) << "another set is another name";
}

TEST(OperationTable, a_name_is_free_again_when_its_operation_has_ended) {
  OperationTable table;
  ASSERT_TRUE(table.add(operations({"a"})).ok());
  table.complete(*table.take_new()[0], {}, {});
  EXPECT_EQ(table.find(0, "a"), nullptr);
  EXPECT_TRUE(table.empty());
  EXPECT_TRUE(table.add(operations({"a"})).ok());
}

TEST(OperationTable, a_handle_is_done_with_its_last_operation_and_keeps_the_first_error) {
  OperationTable table;
  const HandleId id = table.add(operations({"a", "b", "c"})).value();
  const auto state = table.handle(id);
  ASSERT_NE(state, nullptr);
  table.complete(*table.find(0, "c"), {}, outcome(30));
  table.complete(*table.find(0, "a"), Status(ErrorCode::kMismatch, "first"), {});
  EXPECT_FALSE(state->done.load());
  table.complete(*table.find(0, "b"), Status(ErrorCode::kMismatch, "second"), outcome(20));
  EXPECT_TRUE(state->done.load());
  EXPECT_EQ(state->status.message(), "first");
  ASSERT_EQ(state->outcomes.size(), 3U);
  EXPECT_EQ(state->outcomes[1].value, 20);
  EXPECT_EQ(state->outcomes[2].value, 30);
  EXPECT_EQ(table.completed(), 3U);
  EXPECT_EQ(table.payload_bytes(), 3U * 3 * 4);
  table.forget(id);
  EXPECT_EQ(table.handle(id), nullptr);
}

TEST(OperationTable, a_handle_of_nothing_is_done_at_once) {
  OperationTable table;
  EXPECT_TRUE(table.handle(table.add({}).value())->done.load());
}

TEST(OperationTable, an_operation_that_ends_before_it_was_taken_is_not_taken) {
  OperationTable table;
  ASSERT_TRUE(table.add(operations({"gone", "stays"})).ok());
  table.complete(*table.find(0, "gone"), Status(ErrorCode::kMismatch, "removed"), {});
  EXPECT_TRUE(table.has_new());
  const auto taken = table.take_new();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0]->submission.name, "stays");
}

TEST(OperationTable, fail_all_ends_everything_now_and_later_with_the_first_error) {
  OperationTable table;
  const auto taken = table.handle(table.add(operations({"taken", "too"})).value());
  (void)table.take_new();
  const auto fresh = table.handle(table.add(operations({"fresh"})).value());
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
  EXPECT_EQ(table.add(operations({"later"})).status().message(), "rank 2 died");
  EXPECT_EQ(table.error().code(), ErrorCode::kPeerFailed);
}

TEST(OperationTable, a_waiting_thread_is_woken_by_completion_and_by_notify) {
  OperationTable table;
  const auto state = table.handle(table.add(operations({"a"})).value());
  std::thread waiter([&] {
    while (!state->done.load()) {
      table.wait_for_change(*state, std::chrono::hours(1));
    }
  });
  table.notify();
  table.complete(*table.find(0, "a"), {}, {});
  waiter.join();
  table.wait_for_change(*state, std::chrono::hours(1));  // Done: returns at once.
  EXPECT_TRUE(state->status.ok());
}

}  // namespace
}  // namespace lightcc::operation_table_test
