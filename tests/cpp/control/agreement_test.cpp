// What ranks must agree on, and the texts that tell them.
#include "lightcc/control/agreement.hpp"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::agreement_test {
namespace {

Signature of(OpType op, std::vector<std::int64_t> shape = {2, 3}) {
  Signature s;
  s.op = op;
  s.name = "t";
  s.shape = std::move(shape);
  return s;
}

void expect_agreed(const Signature& first, const Signature& other) {
  EXPECT_TRUE(check_agreement(first, 0, other, 1).ok());
}

void expect_text(const Signature& first, const Signature& other, const std::string& text) {
  const Status status = check_agreement(first, 4, other, 2);
  EXPECT_EQ(status.code(), ErrorCode::kMismatch);
  EXPECT_EQ(status.message(), text + " (ranks 4 and 2, tensor 't')");
}

TEST(Agreement, shapes_read_like_lists) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({7}), "[7]");
  EXPECT_EQ(shape_text({2, 0, -1}), "[2, 0, -1]");
}

TEST(Agreement, elements_are_counted_and_impossible_shapes_are_minus_one) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({2, 3, 4}), 24);
  EXPECT_EQ(element_count({kHuge}), kHuge);
  EXPECT_EQ(element_count({3, 0}), 0);
  EXPECT_EQ(element_count({-1}), -1);
  EXPECT_EQ(element_count({-2, -2}), -1);
  EXPECT_EQ(element_count({kHuge, 2}), -1);
  EXPECT_EQ(element_count({kHuge, kHuge, kHuge}), -1);
  EXPECT_EQ(element_count({kHuge, kHuge, 0}), 0);
}

TEST(Agreement, equal_signatures_agree_for_every_operation) {
  for (std::uint8_t op = 0; op < kOpTypeCount; ++op) {
    expect_agreed(of(static_cast<OpType>(op)), of(static_cast<OpType>(op)));
  }
}

TEST(Agreement, different_operations_and_types_do_not_agree) {
  expect_text(
      of(OpType::kAllreduce),
      of(OpType::kBroadcast),
      "Mismatched operations: One rank did an ALLREDUCE, but another rank did an BROADCAST.");
  Signature other = of(OpType::kAllgather);
  other.dtype = DataType::kBfloat16;
  expect_text(of(OpType::kAllgather),
              other,
              "Mismatched data types: One rank had type float32, but another rank had type "
              "bfloat16.");
}

TEST(Agreement, reductions_and_broadcasts_need_the_same_shape) {
  for (const OpType op : {OpType::kAllreduce, OpType::kBroadcast, OpType::kReducescatter}) {
    expect_text(of(op),
                of(op, {3, 2}),
                std::string("Mismatched ") + op_type_name(op) +
                    " tensor shapes: One rank sent a tensor of shape [2, 3], but another rank sent "
                    "a tensor of shape [3, 2].");
  }
}

TEST(Agreement, gathers_and_exchanges_may_differ_in_the_first_dimension_only) {
  for (const OpType op : {OpType::kAllgather, OpType::kAlltoall}) {
    const std::string start = std::string("Mismatched ") + op_type_name(op) + " tensor shapes: ";
    expect_agreed(of(op), of(op, {9, 3}));
    expect_text(of(op),
                of(op, {2, 4}),
                start +
                    "One rank sent a tensor with dimension 1 equal to 3, but another rank sent "
                    "a tensor with dimension 1 equal to 4.");
    expect_text(of(op),
                of(op, {2}),
                start +
                    "One rank sent a tensor of rank 2, but another rank sent a tensor of rank "
                    "1.");
  }
}

TEST(Agreement, reduction_factors_root_and_group_must_match) {
  Signature other = of(OpType::kAllreduce);
  other.reduce_op = ReduceOp::kAverage;
  expect_text(of(OpType::kAllreduce),
              other,
              "Mismatched reduction operation: One rank specified SUM, but another rank specified "
              "AVERAGE.");
  other = of(OpType::kAllreduce);
  other.postscale = 0.5;
  expect_text(of(OpType::kAllreduce),
              other,
              "Mismatched prescale and/or postscale factors: One rank specified 1.000000 and "
              "1.000000, but another rank specified 1.000000 and 0.500000.");
  Signature first = of(OpType::kBroadcast);
  first.root_or_peer = 0;
  other = first;
  other.root_or_peer = 3;
  expect_text(first,
              other,
              "Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank "
              "specified root rank 3.");
  other = of(OpType::kAllreduce);
  other.group = "g";
  other.group_size = 2;
  expect_text(of(OpType::kAllreduce),
              other,
              "Mismatched groups: One rank put the tensor in group '' of 0, but another rank put "
              "it in group 'g' of 2.");
}

TEST(Agreement, memory_of_one_kind_is_brought_by_all) {
  for (const OpType op : {OpType::kAllreduce, OpType::kAllgather, OpType::kBroadcast}) {
    Signature other = of(op);
    other.memory = MemoryKind::kCuda;
    expect_text(of(op),
                other,
                "Mismatched memory: One rank brought a tensor in host memory, but another rank "
                "brought one in cuda memory.");
  }
  Signature send = of(OpType::kSend);
  send.root_or_peer = 1;
  Signature recv = of(OpType::kRecv);
  recv.root_or_peer = 0;
  recv.memory = MemoryKind::kCuda;
  EXPECT_TRUE(check_transfer(send, 0, recv, 1).message().starts_with("Mismatched memory: "));
}

TEST(Agreement, factors_that_are_not_a_number_agree_with_themselves) {
  Signature s = of(OpType::kAllreduce);
  s.prescale = std::numeric_limits<double>::quiet_NaN();
  expect_agreed(s, s);
}

TEST(Agreement, a_transfer_is_a_send_and_a_recv_that_name_each_other) {
  Signature send = of(OpType::kSend);
  send.root_or_peer = 1;
  Signature recv = of(OpType::kRecv);
  recv.root_or_peer = 0;
  EXPECT_TRUE(check_transfer(send, 0, recv, 1).ok());
  EXPECT_TRUE(check_transfer(recv, 1, send, 0).ok());
  Signature second_send = recv;
  second_send.op = OpType::kSend;
  EXPECT_EQ(
      check_transfer(send, 0, second_send, 1).message(),
      "Mismatched transfer: One rank did a SEND with rank 1, but another rank did a SEND with "
      "rank 0. (ranks 0 and 1, tensor 't')");
  EXPECT_EQ(check_transfer(send, 0, recv, 2).code(), ErrorCode::kMismatch);
  EXPECT_EQ(check_transfer(send, 0, of(OpType::kAllreduce), 1).code(), ErrorCode::kMismatch);
  Signature shorter = recv;
  shorter.shape = {2};
  EXPECT_EQ(check_transfer(send, 0, shorter, 1).code(), ErrorCode::kMismatch);
  Signature bytes = recv;
  bytes.dtype = DataType::kUint8;
  EXPECT_EQ(check_transfer(send, 0, bytes, 1).code(), ErrorCode::kMismatch);
}

}  // namespace
}  // namespace lightcc::agreement_test
