// A NcclGroup by itself, on the fakes: what the engine does not ask it for today, and its order.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc_cuda/nccl/comms.hpp"
#include "lightcc_cuda/nccl/group.hpp"
#include "lightcc_cuda/nccl/packing.hpp"
#include "lightcc_cuda/nccl_members.hpp"

namespace lightcc::cuda::nccl_group_test {
namespace {

using testing::finish;

using Floats = std::vector<float>;

/// Memory that a "GPU" and the host read: with `unified` the fake driver takes the host's.
std::byte* data_of(Floats& floats) {
  return reinterpret_cast<std::byte*>(floats.data());
}

Floats floats_of(int rank, std::size_t count) {
  Floats floats(count);
  for (std::size_t i = 0; i < count; ++i) {
    floats[i] = static_cast<float>((i + 3 * static_cast<std::size_t>(rank)) % 11);
  }
  return floats;
}

void run(int members,
         const std::function<void(NcclComms&, Group&, int)>& body,
         const std::string& nccl = {}) {
  testing::run_members({.members = members, .nccl = nccl},
                       [&](NcclComms& comms, const testing::Comms& all, int rank) {
                         body(comms, *make_nccl_group(comms, all.front(), rank, members), rank);
                       });
}

/// Spans of tensors, which every member has.
std::vector<TensorSpan> spans_of(std::vector<Floats>& tensors) {
  std::vector<TensorSpan> spans;
  for (Floats& tensor : tensors) {
    spans.push_back({.in = data_of(tensor), .out = data_of(tensor), .count = tensor.size()});
  }
  return spans;
}

std::vector<Floats> tensors_of(int rank, const std::vector<std::size_t>& sizes) {
  std::vector<Floats> tensors;
  for (const std::size_t size : sizes) {
    tensors.push_back(floats_of(rank + static_cast<int>(tensors.size()), size));
  }
  return tensors;
}

std::vector<Floats> sums_of(const std::vector<int>& ranks, const std::vector<std::size_t>& sizes) {
  std::vector<Floats> sums(sizes.size());
  for (const int rank : ranks) {
    const std::vector<Floats> tensors = tensors_of(rank, sizes);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i].resize(sizes[i]);
      std::ranges::transform(sums[i], tensors[i], sums[i].begin(), std::plus<>());
    }
  }
  return sums;
}

struct Halves {
  std::vector<std::size_t> sizes;
  std::vector<std::size_t> counts;
  bool are_packed;
};

class NcclHalves : public ::testing::TestWithParam<Halves> {};
INSTANTIATE_TEST_SUITE_P(Parts,
                         NcclHalves,
                         ::testing::Values(Halves{{1077}, {359, 359, 359}, false},
                                           Halves{{1000, 77}, {359, 359, 359}, true},
                                           Halves{{1000, 77}, {500, 0, 577}, true},
                                           Halves{{1000, 77}, {77, 1000, 0}, false}));

TEST_P(NcclHalves, of_an_allreduce_are_the_whole) {
  const Halves& halves = GetParam();
  run(3, [&](NcclComms&, Group& group, int rank) {
    std::vector<Floats> tensors = tensors_of(rank, halves.sizes);
    const std::vector<TensorSpan> spans = spans_of(tensors);
    ASSERT_TRUE(finish(*group.reduce_scatter_bucket(spans, halves.counts, Reduction())).ok());
    ASSERT_TRUE(finish(*group.allgather_bucket(spans, halves.counts, DataType::kFloat32)).ok());
    EXPECT_EQ(tensors, sums_of({0, 1, 2}, halves.sizes));
    EXPECT_EQ(fake::launches() > 0, halves.are_packed);
  });
}

TEST(NcclGroup, a_bucket_is_one_call_to_which_a_member_without_tensors_adds_zeros) {
  const std::vector<std::size_t> sizes(300, 20);
  int launches = 0;
  int calls = 0;
  run(3, [&](NcclComms&, Group& group, int rank) {
    std::vector<Floats> tensors = tensors_of(rank, sizes);
    std::vector<TensorSpan> spans = spans_of(tensors);
    for (TensorSpan& span : spans) {
      span.in = rank == 1 ? nullptr : span.in;
      span.out = rank == 1 ? nullptr : span.out;
    }
    ASSERT_TRUE(finish(*group.allreduce(spans, Reduction())).ok());
    EXPECT_EQ(tensors, rank == 1 ? tensors_of(1, sizes) : sums_of({0, 2}, sizes));
    ASSERT_TRUE(finish(*group.barrier()).ok());
    if (rank == 0) {
      launches = fake::launches();
      calls = fake::operations_of_nccl();
    }
  });
  EXPECT_EQ(launches, 2 * 2 * 2);  // A launch takes 254 tensors; two members pack and unpack.
  EXPECT_EQ(calls, 2 * 3);         // The barrier is one as well.
}

TEST(NcclGroup, a_bucket_takes_few_calls_of_the_driver_and_nobody_asks_when_it_ends) {
  using Clock = std::chrono::steady_clock;
  constexpr int kBuckets = 25;
  int calls = 0;
  run(2, [&](NcclComms&, Group& group, int rank) {
    std::vector<Floats> tensors = tensors_of(rank, {100, 200, 300});
    ASSERT_TRUE(finish(*group.allreduce(spans_of(tensors), Reduction())).ok());
    ASSERT_TRUE(finish(*group.barrier()).ok());
    fake::set("devices=5,unified=1");  // It begins to count, after the barrier below.
    const Clock::time_point begin = Clock::now();
    ASSERT_TRUE(finish(*group.barrier()).ok());
    for (int i = 0; i < kBuckets; ++i) {
      ASSERT_TRUE(finish(*group.allreduce(spans_of(tensors), Reduction())).ok());
    }
    ASSERT_TRUE(finish(*group.barrier()).ok());
    if (rank == 0) {
      // Each rank asks for errors once in 10 ms, which may be in each bucket of a busy machine.
      const auto looks = 2 * (1 + (Clock::now() - begin) / std::chrono::milliseconds(10));
      calls = fake::calls() - static_cast<int>(looks);
    }
    ASSERT_TRUE(finish(*group.barrier()).ok());
  });
  // Pack, unpack, record an event and have it told. Where an input has one, it is waited for.
  EXPECT_LT(calls, 2 * kBuckets * 6);
}

TEST(NcclPacking, what_does_not_fit_a_buffer_with_others_travels_behind_them) {
  constexpr std::size_t kMib = std::size_t{1} << 18;  // Elements.
  std::vector<TensorSpan> tensors;
  for (const std::size_t size : {100 * kMib, 40 * kMib, 23 * kMib, std::size_t{1}, kMib}) {
    tensors.push_back({.in = nullptr, .out = nullptr, .count = size});
  }
  EXPECT_EQ(first_run(std::span(tensors), sizeof(float)).size(), 1U);
  EXPECT_EQ(first_run(std::span(tensors).subspan(1), sizeof(float)).size(), 3U);
}

class NcclVersions : public ::testing::TestWithParam<const char*> {};
// Those of torch 2.4, 2.5, 2.7, 2.8 and 2.11.
INSTANTIATE_TEST_SUITE_P(All,
                         NcclVersions,
                         ::testing::Values("22005", "22105", "22602", "22703", "22809"));

TEST_P(NcclVersions, messages_barriers_and_nothing_at_all_end) {
  const auto body = [](NcclComms&, Group& group, int rank) {
    Floats data = floats_of(rank, 50000);
    const std::size_t bytes = data.size() * sizeof(float);
    const std::unique_ptr<Work> message =
        rank == 0 ? group.send(data_of(data), bytes, 1) : group.recv(data_of(data), bytes, 0);
    ASSERT_TRUE(finish(*message).ok());
    EXPECT_EQ(data, floats_of(0, 50000));
    ASSERT_TRUE(finish(*group.barrier()).ok());
    ASSERT_TRUE(finish(*group.allreduce({}, Reduction())).ok());
    ASSERT_TRUE(finish(*group.allgather(nullptr, nullptr, {0, 0})).ok());
    ASSERT_TRUE(finish(*group.broadcast(nullptr, 0, 1)).ok());
    ASSERT_TRUE(finish(*group.alltoall(nullptr, {0, 0}, nullptr, {0, 0})).ok());
    ASSERT_TRUE(finish(*group.reduce_scatter(nullptr, nullptr, {0, 0}, Reduction())).ok());
  };
  run(2, body, std::string("version=") + GetParam());
}

TEST(NcclGroup, what_cannot_be_is_refused_and_the_group_goes_on) {
  run(2, [](NcclComms&, Group& group, int) {
    Floats data(8);
    const std::vector<TensorSpan> tensors = {
        {.in = data_of(data), .out = data_of(data), .count = data.size()}};
    const Reduction scaled_min{DataType::kFloat32, ReduceOp::kMin, 0.5, 1.0};
    const Reduction of_bool{DataType::kBool, ReduceOp::kMax, 1.0, 1.0};
    for (const Reduction& refused : {scaled_min, of_bool}) {
      const auto work = group.allreduce(tensors, refused);
      EXPECT_EQ(work->advance().status().code(), ErrorCode::kInvalidArgument);
    }
    ASSERT_TRUE(finish(*group.barrier()).ok());
  });
}

}  // namespace
}  // namespace lightcc::cuda::nccl_group_test
