// What a rank can tell by itself to be wrong with an operation, and what it fills in.
#include "lightcc/engine/submission.hpp"

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/names.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc::submission_test {
namespace {

constexpr int kWorldSize = 4;
constexpr int kRank = 1;
constexpr std::uint32_t kOddSet = 1;    // Ranks 1 and 3.
constexpr std::uint32_t kOtherSet = 2;  // Without rank 1.
constexpr std::uint32_t kAloneSet = 3;  // Rank 1.

ProcessSetTable table() {
  ProcessSetTable sets(kWorldSize);
  sets.add(kOddSet, {1, 3});
  sets.add(kOtherSet, {0, 2});
  sets.add(kAloneSet, {kRank});
  return sets;
}

Status prepare(Operation& operation, bool serves_cuda = false) {
  const ProcessSetTable sets = table();
  const SubmissionContext context{
      .sets = sets, .rank = kRank, .world_size = kWorldSize, .serves_cuda = serves_cuda};
  LIGHTCC_ASSIGN_OR_RETURN(const auto* members, find_members(operation, context));
  return prepare_operation(operation, *members, context);
}

Operation of(OpType op, std::vector<std::int64_t> shape = {4}) {
  Operation s;
  s.request.signature.op = op;
  s.name = "t";
  s.input.shape = std::move(shape);
  return s;
}

Operation in_set(Operation s, std::uint32_t process_set) {
  s.request.signature.process_set = process_set;
  return s;
}

Operation with_peer(Operation s, int root_or_peer) {
  s.request.signature.root_or_peer = root_or_peer;
  return s;
}

void expect_error(Operation s,
                  const std::string& text,
                  ErrorCode code = ErrorCode::kInvalidArgument) {
  const Status status = prepare(s);
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos)
      << "\"" << status.message() << "\" instead of \"" << text << "\"";
}

void expect_fine(Operation s) {
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

TEST(Submissions, shapes_have_limits) {
  expect_fine(of(OpType::kAllreduce, std::vector<std::int64_t>(kMaxDimensions, 1)));
  expect_error(of(OpType::kAllreduce, std::vector<std::int64_t>(kMaxDimensions + 1, 1)),
               "at most 64 dimensions");
  expect_error(of(OpType::kAllreduce, {2, -3}), "a tensor of shape [2, -3] is not possible");
  expect_error(of(OpType::kAllreduce, {std::numeric_limits<std::int64_t>::max(), 2}),
               "is not possible");
}

TEST(Submissions, reductions_need_a_type_on_which_they_are_defined) {
  Operation s = of(OpType::kAllreduce);
  s.input.dtype = DataType::kBool;
  expect_error(s, "Allreduce with SUM does not support bool tensors.");
  s.request.signature.reduce_op = ReduceOp::kMax;
  expect_fine(s);
  s.input.dtype = DataType::kInt32;
  s.request.signature.reduce_op = ReduceOp::kAdasum;
  expect_error(s, "Allreduce with ADASUM does not support int32 tensors.");
  s = of(OpType::kReducescatter);
  s.request.signature.reduce_op = ReduceOp::kMin;
  expect_error(s, "Reducescatter currently only supports AVERAGE and SUM.", ErrorCode::kMismatch);
  s.input.dtype = DataType::kInt32;
  s.request.signature.reduce_op = ReduceOp::kAdasum;
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

TEST(Submissions, only_receives_without_a_name_take_a_message_of_any_rank) {
  const auto from_any = [](OpType op) {
    Operation s = of(op);
    s.name.reset();
    s.from_any = true;
    return s;
  };
  Operation fine = with_peer(from_any(OpType::kRecv), 2);
  ASSERT_TRUE(prepare(fine).ok());
  EXPECT_EQ(fine.request.signature.root_or_peer, kAnySource);
  Operation named = from_any(OpType::kRecv);
  named.name = "t";
  expect_error(named, "Only a recv without a name");
  expect_error(from_any(OpType::kSend), "Only a recv without a name");
  expect_error(in_set(from_any(OpType::kRecv), kAloneSet), "has no other member");
}

TEST(Submissions, missing_splits_are_even_ones) {
  Operation s = of(OpType::kAlltoall, {8, 3});
  ASSERT_TRUE(prepare(s).ok());
  EXPECT_EQ(s.request.splits, (std::vector<std::int64_t>{2, 2, 2, 2}));
  s = in_set(of(OpType::kAlltoall, {0}), kOddSet);
  ASSERT_TRUE(prepare(s).ok());
  EXPECT_EQ(s.request.splits, (std::vector<std::int64_t>{0, 0}));
  expect_error(of(OpType::kAlltoall, {7}),
               "splits not provided, but first dimension of tensor is not an even multiple of the "
               "number of workers.");
}

TEST(Submissions, given_splits_must_fit) {
  const auto with = [](std::vector<std::int64_t> splits) {
    Operation s = of(OpType::kAlltoall, {8});
    s.request.splits = std::move(splits);
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

TEST(Submissions, barriers_joins_and_set_changes_have_names_of_their_own) {
  Names names(kRank);
  EXPECT_EQ(names.make(of(OpType::kBarrier), false).text, "barrier");
  EXPECT_EQ(names.make(of(OpType::kJoin), false).text, "join");
  Operation s = of(OpType::kAddProcessSet);
  s.request.ranks = {2, 0, 1};
  ASSERT_TRUE(prepare(s).ok());
  EXPECT_EQ(s.request.ranks, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(names.make(s, false).text, "add_process_set.[0, 1, 2]");
  s = with_peer(of(OpType::kRemoveProcessSet), kOtherSet);
  ASSERT_TRUE(prepare(s).ok());
  EXPECT_EQ(names.make(s, false).text, "remove_process_set.2");
}

TEST(Submissions, without_a_name_are_numbered_for_each_sequence) {
  Names names(kRank);
  Operation first = of(OpType::kAllreduce);
  first.name.reset();
  Operation other = first;
  other.sequence = "c10d";
  EXPECT_EQ(names.make(first, false).text, "noname.0");
  EXPECT_EQ(names.make(other, false).text, "c10d.noname.0");
  const Name second = names.make(other, false);
  EXPECT_EQ(second.text, "c10d.noname.1");
  EXPECT_TRUE(second.is_automatic);
  EXPECT_EQ(names.make(first, false).text, "noname.1");
  names.take_back(other);
  EXPECT_EQ(names.make(other, false).text, "c10d.noname.1");
  other.name = "mine";
  EXPECT_EQ(names.make(other, false).text, "c10d.mine");
  const Name group = names.make(other, true);
  EXPECT_EQ(member_name(group, 0, 3).text, "c10d.mine");
  EXPECT_EQ(member_name(group, 2, 3).text, "c10d.mine_3of3");
  EXPECT_FALSE(group.is_automatic);
  Operation broadcast = first;
  broadcast.request.signature.op = OpType::kBroadcast;
  EXPECT_EQ(names.make(broadcast, false).text, "noname.2") << "as any operation at this place";
}

TEST(Submissions, memory_that_no_plane_serves_is_refused) {
  Operation s = of(OpType::kAllreduce);
  s.input.memory = {.kind = MemoryKind::kCuda, .device = 1};
  expect_error(
      s,
      "Allreduce 't' on rank 1: the input tensor lies in cuda:1 memory, which nothing here "
      "serves; served is host memory.");
  EXPECT_TRUE(prepare(s, true).ok());
  EXPECT_EQ(s.request.signature.memory, MemoryKind::kCuda);
  s = of(OpType::kAllgather);
  s.name.reset();
  s.output = s.input;
  s.output->memory.kind = MemoryKind::kCuda;
  expect_error(s, "Allgather on rank 1: the output tensor lies in cuda:0 memory");
}

TEST(Submissions, input_and_output_lie_in_the_same_memory) {
  Operation s = of(OpType::kAllreduce);
  s.output = s.input;
  s.output->memory = {.kind = MemoryKind::kCuda, .device = 1};
  const Status status = prepare(s, true);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "Allreduce: the output tensor lies in cuda:1 memory, but the input in host memory.");
}

TEST(Submissions, outputs_fit_what_is_known_of_the_result) {
  Operation s = of(OpType::kAllreduce, {2, 3});
  s.output = s.input;
  s.output->shape = {6};
  expect_fine(s);
  s.output->shape = {7};
  expect_error(s, "Allreduce: the output tensor has shape [7], but the input has shape [2, 3].");
  s.output->dtype = DataType::kInt8;
  expect_error(s, "Allreduce: the output tensor is of int8, but the input is of float32.");
  s = of(OpType::kAllgather);
  s.output = s.input;
  s.output->shape = {99};
  expect_fine(s);  // Only the negotiation can tell.
  s = with_peer(of(OpType::kSend), 0);
  s.output = s.input;
  expect_error(s, "Send has no output.");
}

TEST(Submissions, impossible_set_changes_are_refused) {
  const auto adding = [](std::vector<std::int32_t> ranks) {
    Operation s = of(OpType::kAddProcessSet);
    s.request.ranks = std::move(ranks);
    return s;
  };
  for (const auto& ranks : std::vector<std::vector<std::int32_t>>{{}, {0, 4}, {-1}, {2, 2}}) {
    expect_error(adding(ranks), "each of 0 to 3 at most once");
  }
  expect_error(adding({3, 1}), "Attempted to add a duplicate process set: [1, 3]");
  for (const int id : {-1, 0, 9}) {
    expect_error(with_peer(of(OpType::kRemoveProcessSet), id), "that could be removed");
  }
  for (const OpType op : {OpType::kJoin, OpType::kAddProcessSet, OpType::kRemoveProcessSet}) {
    expect_error(in_set(of(op), kOddSet), "concern all ranks");
  }
}

// --- Compression ---------------------------------------------------------------------------------

Operation compressible(std::int64_t elements, DataType dtype = DataType::kFloat32) {
  Operation s = of(OpType::kAllreduce, {elements});
  s.input.dtype = dtype;
  return s;
}

std::optional<CompressionSpec> chosen(Operation operation, const Knobs& knobs) {
  EXPECT_TRUE(prepare(operation).ok());
  const auto topk = choose_compression(operation, 4, knobs);
  EXPECT_TRUE(topk.ok()) << topk.status().message();
  return topk.ok() ? *topk : std::nullopt;
}

TEST(Compression, is_chosen_by_the_knobs_for_large_floating_point_sums) {
  Knobs knobs;
  knobs.topk_min_bytes = 4096;
  EXPECT_EQ(chosen(compressible(1024), knobs), std::nullopt);  // Off.
  knobs.topk = true;
  knobs.topk_ratio = 0.25;
  knobs.topk_fp16 = true;
  const CompressionSpec spec{.ratio = 0.25, .fp16 = true};
  EXPECT_EQ(chosen(compressible(1024), knobs), spec);
  EXPECT_EQ(chosen(compressible(1023), knobs), std::nullopt);
  EXPECT_EQ(chosen(compressible(512, DataType::kFloat64), knobs), spec);
  EXPECT_EQ(chosen(compressible(1024, DataType::kInt32), knobs), std::nullopt);
  EXPECT_EQ(chosen(compressible(0), knobs), std::nullopt);
  Operation dense = compressible(1024);
  dense.name.reset();
  EXPECT_EQ(chosen(dense, knobs), std::nullopt);
  Operation maximum = compressible(1024);
  maximum.request.signature.reduce_op = ReduceOp::kMax;
  EXPECT_EQ(chosen(maximum, knobs), std::nullopt);
}

TEST(Compression, by_quantisation_counts_before_topk) {
  Knobs knobs;
  knobs.topk_min_bytes = 4096;
  knobs.topk = true;
  for (const auto& [word, compressor] :
       {std::pair("int8", Compressor::kInt8), std::pair("int4", Compressor::kInt4)}) {
    knobs.quantize = word;
    EXPECT_EQ(chosen(compressible(1024), knobs), CompressionSpec{.compressor = compressor});
    EXPECT_EQ(chosen(compressible(1023), knobs), std::nullopt);
    Operation asks = compressible(1024);
    asks.request.signature.compression = CompressionSpec{.ratio = 0.5};
    EXPECT_EQ(chosen(asks, knobs)->compressor, Compressor::kTopk);
  }
  Operation asks = compressible(1024);
  asks.request.signature.compression =
      CompressionSpec{.compressor = Compressor::kInt8, .momentum = 0.9};
  EXPECT_EQ(choose_compression(asks, 4, knobs).status().code(), ErrorCode::kInvalidArgument);
}

TEST(Compression, that_is_asked_for_needs_no_knob_but_the_size) {
  Knobs knobs;
  Operation asks = compressible(1 << 20);
  asks.request.signature.compression = CompressionSpec{.ratio = 0.5};
  EXPECT_EQ(chosen(asks, knobs), asks.request.signature.compression);
  asks.input.shape = {16};
  EXPECT_EQ(chosen(asks, knobs), std::nullopt);
}

TEST(Compression, that_is_not_possible_is_refused_by_name) {
  Operation asks = compressible(1 << 20);
  asks.request.signature.compression = CompressionSpec{};
  asks.request.signature.reduce_op = ReduceOp::kMin;
  EXPECT_EQ(
      choose_compression(asks, 4, Knobs()).status().message(),
      "Allreduce with MIN cannot be top-k compressed: only an allreduce with AVERAGE or SUM.");
  asks.request.signature.reduce_op = ReduceOp::kSum;
  asks.request.signature.compression->ratio = 0.0;
  const Status status = choose_compression(asks, 4, Knobs()).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(status.message().starts_with("top-k compression with ratio 0 and momentum 0"));
  asks.name.reset();
  EXPECT_TRUE(choose_compression(asks, 4, Knobs())
                  .status()
                  .message()
                  .starts_with("top-k compression needs a name"));
}

}  // namespace
}  // namespace lightcc::submission_test
