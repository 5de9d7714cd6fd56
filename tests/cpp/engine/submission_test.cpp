// What a rank can tell by itself to be wrong with a submission, and what it fills in.
#include "lightcc/engine/submission.hpp"

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/wire/control_messages.hpp"

namespace lightcc::submission_test {
namespace {

constexpr int kWorldSize = 4;
constexpr int kRank = 1;
constexpr std::uint32_t kOddSet = 1;    // Ranks 1 and 3.
constexpr std::uint32_t kOtherSet = 2;  // Without rank 1.

ProcessSetTable table() {
  ProcessSetTable sets(kWorldSize);
  sets.add(kOddSet, {1, 3});
  sets.add(kOtherSet, {0, 2});
  return sets;
}

Status prepare(Submission& submission, bool dynamic = true) {
  return prepare_submission(submission, table(), kRank, kWorldSize, dynamic);
}

Submission of(OpType op, std::vector<std::int64_t> shape = {4}) {
  Submission s;
  s.op = op;
  s.name = "t";
  s.shape = std::move(shape);
  return s;
}

Submission in_set(Submission s, std::uint32_t process_set) {
  s.process_set = process_set;
  return s;
}

Submission with_peer(Submission s, int root_or_peer) {
  s.root_or_peer = root_or_peer;
  return s;
}

void expect_error(Submission s,
                  const std::string& text,
                  ErrorCode code = ErrorCode::kInvalidArgument,
                  bool dynamic = true) {
  const Status status = prepare(s, dynamic);
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos)
      << "\"" << status.message() << "\" instead of \"" << text << "\"";
}

void expect_fine(Submission s) {
  const Status status = prepare(s);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Submissions, ordinary_ones_pass) {
  expect_fine(of(OpType::kAllreduce));
  expect_fine(of(OpType::kAllreduce, {}));
  expect_fine(of(OpType::kAllreduce, {0, 5}));
  expect_fine(in_set(of(OpType::kAllgather), kOddSet));
  expect_fine(of(OpType::kReducescatter, {1}));
  for (int root = 0; root < kWorldSize; ++root) {
    expect_fine(with_peer(of(OpType::kBroadcast), root));
  }
  expect_fine(with_peer(of(OpType::kSend), 0));
  expect_fine(with_peer(in_set(of(OpType::kRecv), kOddSet), 3));
}

TEST(Submissions, process_sets_must_exist_and_contain_this_rank) {
  expect_error(in_set(of(OpType::kAllreduce), 9),
               "Allreduce: Process set provided does not exist, or has not been registered.");
  expect_error(in_set(of(OpType::kAlltoall), kOtherSet),
               "Alltoall: Rank 1 is not a member of the provided process set.");
}

TEST(Submissions, names_and_shapes_have_limits) {
  Submission s = of(OpType::kAllreduce);
  s.name.assign(kMaxNameBytes, 'n');
  expect_fine(s);
  s.name += 'n';
  expect_error(s, "a tensor name has 4097 bytes");
  expect_fine(of(OpType::kAllreduce, std::vector<std::int64_t>(kMaxDimensions, 1)));
  expect_error(of(OpType::kAllreduce, std::vector<std::int64_t>(kMaxDimensions + 1, 1)),
               "at most 64 dimensions");
  expect_error(of(OpType::kAllreduce, {2, -3}), "a tensor of shape [2, -3] is not possible");
  expect_error(of(OpType::kAllreduce, {std::numeric_limits<std::int64_t>::max(), 2}),
               "is not possible");
}

TEST(Submissions, reductions_need_a_type_on_which_they_are_defined) {
  Submission s = of(OpType::kAllreduce);
  s.dtype = DataType::kBool;
  expect_error(s, "Allreduce with SUM does not support bool tensors.");
  s.reduce_op = ReduceOp::kMax;
  expect_fine(s);
  s.dtype = DataType::kInt32;
  s.reduce_op = ReduceOp::kAdasum;
  expect_error(s, "Allreduce with ADASUM does not support int32 tensors.");
  s = of(OpType::kReducescatter);
  s.reduce_op = ReduceOp::kMin;
  expect_error(s, "Reducescatter currently only supports AVERAGE and SUM.", ErrorCode::kMismatch);
  s.dtype = DataType::kInt32;
  s.reduce_op = ReduceOp::kAdasum;
  expect_error(s, "Reducescatter currently only supports AVERAGE and SUM.", ErrorCode::kMismatch);
}

TEST(Submissions, scalars_cannot_be_gathered_scattered_or_exchanged) {
  expect_error(of(OpType::kAllgather, {}),
               "Process-set rank zero tried to ALLGATHER a rank-zero tensor.",
               ErrorCode::kMismatch);
  expect_error(of(OpType::kReducescatter, {}), "Reducescatter does not support scalar inputs");
  expect_error(of(OpType::kAlltoall, {}), "alltoall does not support scalar inputs");
}

TEST(Submissions, roots_and_peers_are_other_members) {
  const char* root = "broadcast received invalid root rank";
  expect_error(with_peer(of(OpType::kBroadcast), -1), root);
  expect_error(with_peer(of(OpType::kBroadcast), kWorldSize), root);
  expect_error(with_peer(in_set(of(OpType::kBroadcast), kOddSet), 0), root);
  for (const OpType op : {OpType::kSend, OpType::kRecv}) {
    for (const int peer : {-1, kRank, kWorldSize}) {
      expect_error(with_peer(of(op), peer), "is not another member of the process set");
    }
  }
}

TEST(Submissions, missing_splits_are_even_ones) {
  Submission s = of(OpType::kAlltoall, {8, 3});
  ASSERT_TRUE(prepare(s).ok());
  EXPECT_EQ(s.splits, (std::vector<std::int64_t>{2, 2, 2, 2}));
  s = in_set(of(OpType::kAlltoall, {0}), kOddSet);
  ASSERT_TRUE(prepare(s).ok());
  EXPECT_EQ(s.splits, (std::vector<std::int64_t>{0, 0}));
  expect_error(of(OpType::kAlltoall, {7}),
               "splits not provided, but first dimension of tensor is not an even multiple of the "
               "number of workers.");
}

TEST(Submissions, given_splits_must_fit) {
  const auto with = [](std::vector<std::int64_t> splits) {
    Submission s = of(OpType::kAlltoall, {8});
    s.splits = std::move(splits);
    return s;
  };
  expect_fine(with({8, 0, 0, 0}));
  expect_fine(with({1, 1, 1, 1}));  // Rows may be left over.
  expect_error(with({4, 4}), "Number of entries in splits does not equal number of workers.");
  expect_error(with({-1, 4, 4, 1}), "Entries of splits must not be negative.");
  const char* too_many = "Sum of splits entries is greater than the first dimension of tensor.";
  expect_error(with({3, 3, 3, 0}), too_many);
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  expect_error(with({kHuge, kHuge, kHuge, kHuge}), too_many);
}

TEST(Submissions, barriers_joins_and_set_changes_get_their_names) {
  Submission s = of(OpType::kBarrier);
  ASSERT_TRUE(prepare(s).ok());
  EXPECT_EQ(s.name, "barrier");
  s = of(OpType::kJoin);
  ASSERT_TRUE(prepare(s).ok());
  EXPECT_EQ(s.name, "join");
  s = of(OpType::kAddProcessSet);
  s.ranks = {2, 0, 1};
  ASSERT_TRUE(prepare(s).ok());
  EXPECT_EQ(s.ranks, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(s.name, "add_process_set.[0, 1, 2]");
  s = with_peer(of(OpType::kRemoveProcessSet), kOtherSet);
  ASSERT_TRUE(prepare(s).ok());
  EXPECT_EQ(s.name, "remove_process_set.2");
}

TEST(Submissions, impossible_set_changes_are_refused) {
  const auto adding = [](std::vector<std::int32_t> ranks) {
    Submission s = of(OpType::kAddProcessSet);
    s.ranks = std::move(ranks);
    return s;
  };
  for (const auto& ranks : std::vector<std::vector<std::int32_t>>{{}, {0, 4}, {-1}, {2, 2}}) {
    expect_error(adding(ranks), "each of 0 to 3 at most once");
  }
  expect_error(adding({3, 1}), "Attempted to add a duplicate process set: [1, 3]");
  for (const int id : {-1, 0, 9}) {
    expect_error(with_peer(of(OpType::kRemoveProcessSet), id), "that could be removed");
  }
  const char* fixed = "Set HOROVOD_DYNAMIC_PROCESS_SETS=1";
  expect_error(adding({0, 1}), fixed, ErrorCode::kInvalidArgument, false);
  expect_error(
      with_peer(of(OpType::kRemoveProcessSet), kOddSet), fixed, ErrorCode::kInvalidArgument, false);
  for (const OpType op : {OpType::kJoin, OpType::kAddProcessSet, OpType::kRemoveProcessSet}) {
    expect_error(in_set(of(op), kOddSet), "concern all ranks");
  }
}

// --- Compression ---------------------------------------------------------------------------------

Submission compressible(std::int64_t elements, DataType dtype = DataType::kFloat32) {
  Submission s = of(OpType::kAllreduce, {elements});
  s.dtype = dtype;
  s.may_compress = true;
  return s;
}

std::optional<TopkSpec> chosen(const Submission& submission, const Knobs& knobs) {
  const auto topk = choose_compression(submission, knobs);
  EXPECT_TRUE(topk.ok()) << topk.status().message();
  return topk.ok() ? *topk : std::nullopt;
}

TEST(Compression, is_chosen_by_the_knobs_for_large_floating_point_sums) {
  Knobs knobs;
  knobs.topk_least_bytes = 4096;
  EXPECT_EQ(chosen(compressible(1024), knobs), std::nullopt);  // Off.
  knobs.topk = true;
  knobs.topk_ratio = 0.25;
  knobs.topk_fp16 = true;
  const TopkSpec spec{.ratio = 0.25, .fp16 = true};
  EXPECT_EQ(chosen(compressible(1024), knobs), spec);
  EXPECT_EQ(chosen(compressible(1023), knobs), std::nullopt);
  EXPECT_EQ(chosen(compressible(512, DataType::kFloat64), knobs), spec);
  EXPECT_EQ(chosen(compressible(1024, DataType::kInt32), knobs), std::nullopt);
  EXPECT_EQ(chosen(compressible(0), knobs), std::nullopt);
  Submission dense = compressible(1024);
  dense.may_compress = false;
  EXPECT_EQ(chosen(dense, knobs), std::nullopt);
  Submission maximum = compressible(1024);
  maximum.reduce_op = ReduceOp::kMax;
  EXPECT_EQ(chosen(maximum, knobs), std::nullopt);
}

TEST(Compression, that_is_asked_for_needs_no_knob_but_the_size) {
  Knobs knobs;
  Submission asks = compressible(1 << 20);
  asks.may_compress = false;
  asks.topk = TopkSpec{.ratio = 0.5};
  EXPECT_EQ(chosen(asks, knobs), asks.topk);
  knobs.topk_exact = true;
  EXPECT_TRUE(chosen(asks, knobs)->exact);
  asks.shape = {16};
  EXPECT_EQ(chosen(asks, knobs), std::nullopt);
}

TEST(Compression, that_is_not_possible_is_refused_by_name) {
  Submission asks = compressible(1 << 20);
  asks.topk = TopkSpec{};
  asks.reduce_op = ReduceOp::kMin;
  EXPECT_EQ(
      choose_compression(asks, Knobs()).status().message(),
      "Allreduce with MIN cannot be top-k compressed: only an allreduce with AVERAGE or SUM.");
  asks.reduce_op = ReduceOp::kSum;
  asks.topk->ratio = 0.0;
  const Status status = choose_compression(asks, Knobs()).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(status.message().starts_with("top-k compression with ratio 0 and momentum 0"));
}

}  // namespace
}  // namespace lightcc::submission_test
