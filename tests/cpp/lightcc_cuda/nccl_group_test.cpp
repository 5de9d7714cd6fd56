// A NcclGroup by itself, on the fakes: what the engine does not ask it for today, and its order.
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc_cuda/nccl/comms.hpp"
#include "lightcc_cuda/nccl/group.hpp"
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
  testing::run_members({.members = members, .nccl = nccl}, body);
}

TEST(NcclGroup, halves_of_an_allreduce_are_the_whole) {
  run(3, [](NcclComms&, Group& group, int rank) {
    Floats first = floats_of(rank, 1000);
    Floats second = floats_of(rank + 5, 77);
    const std::vector<TensorSpan> tensors = {
        {.in = data_of(first), .out = data_of(first), .count = first.size()},
        {.in = data_of(second), .out = data_of(second), .count = second.size()}};
    const std::vector<std::size_t> counts = {500, 0, 577};
    const Reduction sum;
    ASSERT_TRUE(finish(*group.reduce_scatter_bucket(tensors, counts, sum)).ok());
    ASSERT_TRUE(finish(*group.allgather_bucket(tensors, counts, DataType::kFloat32)).ok());
    for (std::size_t i = 0; i < first.size(); ++i) {
      float expected = 0;
      for (int member = 0; member < 3; ++member) {
        expected += floats_of(member, 1000)[i];
      }
      ASSERT_EQ(first[i], expected) << i;
    }
    for (std::size_t i = 0; i < second.size(); ++i) {
      float expected = 0;
      for (int member = 0; member < 3; ++member) {
        expected += floats_of(member + 5, 77)[i];
      }
      ASSERT_EQ(second[i], expected) << i;
    }
  });
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

TEST(NcclGroup, a_copy_comes_before_the_operation_that_is_started_next) {
  run(2, [](NcclComms& comms, Group& group, int rank) {
    Floats from = floats_of(rank, 2000);
    Floats data(from.size());
    if (rank == 1) {
      comms.copy_before_next(data_of(data), data_of(from), from.size() * sizeof(float));
    }
    ASSERT_TRUE(finish(*group.broadcast(data_of(data), data.size() * sizeof(float), 1)).ok());
    EXPECT_EQ(data, floats_of(1, 2000));
  });
}

TEST(NcclGroup, what_cannot_be_is_refused_and_the_group_goes_on) {
  run(2, [](NcclComms&, Group& group, int) {
    Floats data(8);
    const std::vector<TensorSpan> tensors = {
        {.in = data_of(data), .out = data_of(data), .count = data.size()}};
    const Reduction scaled_min{DataType::kFloat32, ReduceOp::kMin, 0.5, 1.0};
    const Reduction of_bool{DataType::kBool, ReduceOp::kMax, 1.0, 1.0};
    const std::array<std::unique_ptr<Work>, 5> refused = {
        group.allreduce(tensors, scaled_min),
        group.allreduce(tensors, of_bool),
        group.reduce_scatter_bucket(tensors, {1, 2}, Reduction()),
        group.allgather_bucket(tensors, {8}, DataType::kFloat32),
        group.broadcast(data_of(data), 8, 2)};
    for (const auto& work : refused) {
      EXPECT_EQ(work->advance().status().code(), ErrorCode::kInvalidArgument);
    }
    ASSERT_TRUE(finish(*group.barrier()).ok());
  });
}

TEST(NcclGroup, what_is_dropped_before_its_end_is_aborted) {
  run(2, [](NcclComms&, Group& group, int rank) {
    Floats data = floats_of(rank, 1000);
    const std::size_t bytes = data.size() * sizeof(float);
    if (rank == 0) {
      std::unique_ptr<Work> work = group.recv(data_of(data), bytes, 1);  // Nobody sends it.
      ASSERT_TRUE(work->advance().ok());
      work.reset();
      EXPECT_EQ(data, floats_of(0, 1000));
      EXPECT_EQ(finish(*group.barrier()).code(), ErrorCode::kShutDown);
    }
  });
}

}  // namespace
}  // namespace lightcc::cuda::nccl_group_test
