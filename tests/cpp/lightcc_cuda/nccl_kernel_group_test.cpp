// Reductions by kernels in a NcclGroup, against reduce() of all members' tensors, bit for bit.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"

#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/nccl/group.hpp"
#include "lightcc_cuda/nccl_members.hpp"

namespace lightcc::cuda::nccl_kernel_group_test {
namespace {

using testing::finish;
using testing::Region;
using testing::run_members;
using testing::seed;

constexpr int kNobody = -1;

/// Every element that a NcclGroup may not leave to NCCL, whose fake adds in the reverse order.
KernelReductions in_rank_order(std::size_t piece_bytes, std::size_t max_gathered_bytes) {
  return {.are_loaded = true,
          .in_rank_order = true,
          .piece_bytes = piece_bytes,
          .max_gathered_bytes = max_gathered_bytes};
}

/// One operation, as all members know it.
struct Case {
  Reduction reduction;
  std::vector<std::size_t> counts;  ///< Of its tensors.
  std::uint64_t number = 0;
  int joined = kNobody;
  bool in_place = true;

  std::size_t element() const { return element_size(reduction.dtype); }
};

/// What a member brings.
std::vector<Region> inputs_of(const Case& c, int member) {
  std::vector<Region> inputs;
  for (const std::size_t count : c.counts) {
    Rng rng(seed() * 1000003 + c.number * 1009 + inputs.size() * 31 +
            static_cast<std::uint64_t>(member));
    // Half of the tensors lie where no vector of elements does.
    const std::size_t shift = c.number % 2 == 0 ? 0 : (c.element() == 1 ? 3 : c.element());
    inputs.emplace_back(count * c.element(), shift).randomize(rng);
  }
  return inputs;
}

std::vector<Region> results_of(const Case& c, int members) {
  std::vector<std::vector<Region>> all;
  for (int member = 0; member < members; ++member) {
    all.push_back(inputs_of(c, member));
  }
  std::vector<Region> results;
  for (std::size_t tensor = 0; tensor < c.counts.size(); ++tensor) {
    std::vector<ReduceSource> sources;
    for (int member = 0; member < members; ++member) {
      Region& input = all[static_cast<std::size_t>(member)][tensor];
      sources.push_back({.data = member == c.joined ? nullptr : input.bytes()});
    }
    Region& result = results.emplace_back(c.counts[tensor] * c.element());
    reduce(sources, result.bytes(), nullptr, c.counts[tensor], c.reduction, SimdLevel::kPlain);
  }
  return results;
}

/// The tensors of a case on one member, which are freed when the GPU is done with them.
struct Tensors {
  Tensors(const Case& c, int rank) : inputs(inputs_of(c, rank)), is_there(rank != c.joined) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      outputs.emplace_back(inputs[i].size_bytes());
      Region& out = c.in_place ? inputs[i] : outputs[i];
      spans.push_back({.in = is_there ? inputs[i].bytes() : nullptr,
                       .out = is_there ? out.bytes() : nullptr,
                       .count = c.counts[i]});
    }
  }

  std::vector<Region> inputs;
  std::vector<Region> outputs;
  std::vector<TensorSpan> spans;
  bool is_there;
};

void expect_allreduce(Group& group, int rank, const Case& c) {
  Tensors tensors(c, rank);
  const Status ended = finish(*group.allreduce(tensors.spans, c.reduction));
  ASSERT_TRUE(ended.ok()) << ended.message();
  if (tensors.is_there) {
    EXPECT_EQ(c.in_place ? tensors.inputs : tensors.outputs, results_of(c, group.size()));
  }
  if (!c.in_place) {
    EXPECT_EQ(tensors.inputs, inputs_of(c, rank));
  }
}

/// So many elements of `total` for each member: all alike, some more, or none.
std::vector<std::size_t> shares_of(std::size_t total, std::size_t members, std::uint64_t number) {
  std::vector<std::size_t> counts(members, total / members);
  counts[number % members] += total - total / members * members;
  if (number % 3 == 0) {
    counts.back() += std::exchange(counts.front(), 0);
  }
  return counts;
}

void expect_reduce_scatter(Group& group, int rank, const Case& c) {
  Case one = c;
  one.counts = {c.counts.front()};
  Tensors tensors(one, rank);
  const std::vector<std::size_t> counts =
      shares_of(one.counts.front(), static_cast<std::size_t>(group.size()), c.number);
  std::size_t first = 0;
  for (int member = 0; member < rank; ++member) {
    first += counts[static_cast<std::size_t>(member)];
  }
  const std::size_t own = counts[static_cast<std::size_t>(rank)];
  Region result(own * c.element());
  const TensorSpan& span = tensors.spans.front();
  const Status ended = finish(*group.reduce_scatter(
      span.in, tensors.is_there ? result.bytes() : nullptr, counts, c.reduction));
  ASSERT_TRUE(ended.ok()) << ended.message();
  if (tensors.is_there && own > 0) {
    EXPECT_EQ(std::memcmp(result.bytes(),
                          results_of(one, group.size()).front().bytes() + first * c.element(),
                          result.size_bytes()),
              0);
  }
  EXPECT_EQ(tensors.inputs, inputs_of(one, rank));
}

/// Both halves of an all-reduce.
void expect_halves(Group& group, int rank, const Case& c) {
  Case all_there = c;
  all_there.joined = kNobody;
  Tensors tensors(all_there, rank);
  std::size_t total = 0;
  for (const std::size_t count : c.counts) {
    total += count;
  }
  const auto counts = shares_of(total, static_cast<std::size_t>(group.size()), c.number);
  Status ended = finish(*group.reduce_scatter_bucket(tensors.spans, counts, c.reduction));
  ASSERT_TRUE(ended.ok()) << ended.message();
  for (TensorSpan& span : tensors.spans) {
    span.in = span.out;
  }
  ended = finish(*group.allgather_bucket(tensors.spans, counts, c.reduction.dtype));
  ASSERT_TRUE(ended.ok()) << ended.message();
  EXPECT_EQ(c.in_place ? tensors.inputs : tensors.outputs, results_of(all_there, group.size()));
}

const std::vector<std::vector<std::size_t>>& tensor_counts() {
  static const std::vector<std::vector<std::size_t>> all = {
      {1}, {37}, {0}, {64}, {300}, {5, 0, 70, 1, 9, 33}, {130, 31}, {2, 3}};
  return all;
}

/// Every type, operator and kind of factors, with tensors and joined members in turn.
std::vector<Case> cases_of(int members) {
  std::vector<Case> cases;
  for (std::uint8_t type = 0; type < kDataTypeCount; ++type) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (const bool is_scaled : {false, true}) {
        const auto dtype = static_cast<DataType>(type);
        if (!is_reducible(dtype, op)) {
          continue;
        }
        const std::uint64_t number = cases.size();
        cases.push_back({.reduction = {.dtype = dtype,
                                       .op = op,
                                       .prescale = is_scaled ? 0.75 : 1.0,
                                       .postscale = is_scaled ? -1.0 / 3 : 1.0},
                         .counts = tensor_counts()[(number * 5 + type) % tensor_counts().size()],
                         .number = number,
                         .joined = members > 1 && number % 4 == 1
                                       ? static_cast<int>(number / 4) % members
                                       : kNobody,
                         .in_place = number % 3 != 0});
      }
    }
  }
  return cases;
}

class NcclKernelGroup : public ::testing::TestWithParam<int> {
 protected:
  static void expect_the_bits_of_reduce(const KernelReductions& kernels) {
    const auto body = [](NcclComms&, Group& group, int rank) {
      for (const Case& c : cases_of(group.size())) {
        LIGHTCC_TRACE(data_type_name(c.reduction.dtype)
                      << " " << reduce_op_name(c.reduction.op) << ", case " << c.number);
        expect_allreduce(group, rank, c);
        expect_reduce_scatter(group, rank, c);
        expect_halves(group, rank, c);
      }
    };
    run_members({.members = GetParam(), .kernels = kernels, .nccl = "backwards=1"}, body);
  }
};

TEST_P(NcclKernelGroup, gathers_small_buckets_with_the_bits_of_reduce) {
  expect_the_bits_of_reduce(in_rank_order(std::size_t{1} << 20, std::size_t{1} << 20));
}

TEST_P(NcclKernelGroup, cuts_larger_ones_into_pieces_and_shares_with_the_same_bits) {
  expect_the_bits_of_reduce(in_rank_order(600, 0));
}

INSTANTIATE_TEST_SUITE_P(Members, NcclKernelGroup, ::testing::Range(1, 6));

TEST(NcclKernels, memory_does_not_grow_with_the_bucket) {
  // The GPUs have 1 MiB together. Tensors are in the host's memory.
  run_members(
      {.members = 3, .kernels = in_rank_order(std::size_t{64} << 10, 0), .gpus = "memory_mb=1"},
      [](NcclComms&, Group& group, int rank) {
        const Case large{
            .reduction = {.dtype = DataType::kInt16}, .counts = {300000, 400001}, .number = 4};
        expect_allreduce(group, rank, large);
        expect_reduce_scatter(group, rank, large);
      });
}

TEST(NcclKernels, what_has_no_kernel_is_refused_and_the_group_goes_on) {
  run_members({.members = 2}, [](NcclComms&, Group& group, int rank) {
    const Case c{.reduction = {.dtype = DataType::kInt16}, .counts = {8}};
    Tensors tensors(c, rank);
    EXPECT_EQ(group.allreduce(tensors.spans, c.reduction)->advance().status().code(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(
        group.reduce_scatter_bucket(tensors.spans, {4, 4}, c.reduction)->advance().status().code(),
        ErrorCode::kInvalidArgument);
    ASSERT_TRUE(finish(*group.barrier()).ok());
  });
}

TEST(NcclKernels, barriers_and_nothing_at_all_end) {
  run_members({.members = 3, .kernels = in_rank_order(1024, 0)}, [](NcclComms&, Group& group, int) {
    const Reduction of_bool{.dtype = DataType::kBool, .op = ReduceOp::kMax};
    ASSERT_TRUE(finish(*group.barrier()).ok());
    ASSERT_TRUE(finish(*group.allreduce({}, of_bool)).ok());
    ASSERT_TRUE(finish(*group.reduce_scatter(nullptr, nullptr, {0, 0, 0}, of_bool)).ok());
    ASSERT_TRUE(finish(*group.reduce_scatter_bucket({}, {0, 0, 0}, of_bool)).ok());
  });
}

}  // namespace
}  // namespace lightcc::cuda::nccl_kernel_group_test
