// Which operations may be in flight together, by the memory that they read and write.
#include "lightcc/engine/memory_in_use.hpp"

#include <array>
#include <map>
#include <string>

#include <gtest/gtest.h>

namespace lightcc::memory_in_use_test {
namespace {

constexpr int kRank = 1;

std::array<float, 64> memory;  // NOLINT: addresses are all that is used of it.

TensorRef floats(std::size_t begin, std::int64_t count) {
  return {.data = &memory.at(begin), .dtype = DataType::kFloat32, .shape = {count}};
}

Operation operation(OpType op, const char* name, const TensorRef& input) {
  Operation made;
  made.request.signature.op = op;
  made.request.signature.name = name;
  made.input = input;
  return made;
}

Operation reading(const char* name, std::size_t begin, std::int64_t count) {
  return operation(OpType::kSend, name, floats(begin, count));
}

Operation writing(const char* name, std::size_t begin, std::int64_t count) {
  Operation made = operation(OpType::kAllreduce, name, floats(begin, count));
  made.output = made.input;
  return made;
}

TEST(MemoryInUse, whoever_writes_shares_with_nobody) {
  MemoryInUse in_use(kRank);
  const Operation held = writing("held", 10, 10);
  ASSERT_TRUE(in_use.add(held).ok());
  for (const auto& [begin, count] :
       std::map<std::size_t, std::int64_t>{{0, 11}, {5, 40}, {12, 2}, {19, 5}}) {
    for (const Operation& other : {writing("w", begin, count), reading("r", begin, count)}) {
      const Status refused = in_use.add(other);
      EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument) << begin;
      EXPECT_NE(refused.message().find("that 'held', which is in flight, writes"),
                std::string::npos);
      EXPECT_EQ(refused.message().find("the tensor of '" + other.request.signature.name + "'"), 0U);
    }
  }
  const Operation before = writing("before", 0, 10);
  const Operation after = reading("after", 20, 10);
  const Operation nothing = writing("nothing", 15, 0);
  EXPECT_TRUE(in_use.add(before).ok());
  EXPECT_TRUE(in_use.add(after).ok());
  EXPECT_TRUE(in_use.add(nothing).ok());
  in_use.remove(nothing);
  in_use.remove(held);
  const Operation again = writing("again", 10, 10);
  EXPECT_TRUE(in_use.add(again).ok());
}

TEST(MemoryInUse, readers_share_and_keep_writers_away_to_the_last) {
  MemoryInUse in_use(kRank);
  const std::array<Operation, 4> readers = {
      reading("a", 10, 10), reading("b", 10, 10), reading("c", 0, 64), reading("d", 12, 2)};
  for (const Operation& reader : readers) {
    ASSERT_TRUE(in_use.add(reader).ok());
  }
  const Operation writer = writing("writer", 13, 1);
  for (const Operation& reader : readers) {
    const Status refused = in_use.add(writer);
    EXPECT_NE(refused.message().find("which is in flight, reads"), std::string::npos);
    in_use.remove(reader);
  }
  EXPECT_TRUE(in_use.add(writer).ok());
}

TEST(MemoryInUse, a_refused_operation_leaves_nothing_behind) {
  MemoryInUse in_use(kRank);
  const Operation held = writing("held", 0, 4);
  ASSERT_TRUE(in_use.add(held).ok());
  Operation other = operation(OpType::kAllgather, "other", floats(0, 4));
  other.output = floats(8, 8);
  EXPECT_FALSE(in_use.add(other).ok());
  const Operation there = writing("there", 8, 8);
  EXPECT_TRUE(in_use.add(there).ok());
  in_use.clear();
  EXPECT_TRUE(in_use.add(other).ok());
}

TEST(MemoryInUse, input_and_output_of_one_operation_may_cross) {
  MemoryInUse in_use(kRank);
  Operation gather = operation(OpType::kAllgather, "gather", floats(4, 4));
  gather.output = floats(0, 8);
  ASSERT_TRUE(in_use.add(gather).ok());
  in_use.remove(gather);
  const Operation writer = writing("writer", 0, 8);
  EXPECT_TRUE(in_use.add(writer).ok());
}

TEST(MemoryInUse, the_root_of_a_broadcast_in_place_only_reads) {
  MemoryInUse in_use(kRank);
  Operation root = operation(OpType::kBroadcast, "root", floats(0, 8));
  root.request.signature.root_or_peer = kRank;
  root.output = root.input;
  ASSERT_TRUE(in_use.add(root).ok());
  const Operation reader = reading("reader", 0, 8);
  EXPECT_TRUE(in_use.add(reader).ok());
  Operation other = root;
  other.request.signature.root_or_peer = 0;
  EXPECT_FALSE(in_use.add(other).ok());
}

}  // namespace
}  // namespace lightcc::memory_in_use_test
