// Top-k lists that the fake NCCL carries between hosts, from GPU to GPU, where it has scattered
// shards within them before: the bits of lists that go by way of the host.
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/compressed_training.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"
#include "lightcc_cuda/nccl_topk_jobs.hpp"
#include "lightcc_cuda/topk_jobs.hpp"

namespace lightcc::cuda::nccl_topk_levels_test {
namespace {

using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
namespace topk_jobs = testing::topk_jobs;
using testing::Framework;
using testing::run_nccl_job;
using testing::wait_for_all;
using topk_jobs::kCount;

constexpr int kRanks = 4;
/// Of NCCL, in a step of a rank: shards are scattered and gathered, and lists go between hosts when
/// members have agreed on what is void.
constexpr std::array<int, 2> kCalls{2, 4};

JobOptions on_levels(const char* nccl_topk = "1") {
  JobOptions options = topk_jobs::options_on_levels();
  options.environment["LIGHT_NCCL_TOPK"] = nccl_topk;
  return options;
}

/// Steps of three tensors. The second one is too small for a shard on each rank.
std::vector<Numbers> train(World& world,
                           int rank,
                           const Framework* framework,
                           const CompressionSpec& spec) {
  return testing::train(
      world, rank, framework, spec, {.elements = {kCount, 5, 300}, .void_rank = 2});
}

class NcclTopkOnLevels : public ::testing::TestWithParam<CompressionSpec> {
 protected:
  void SetUp() override { fake::set_nccl(""); }
};
INSTANTIATE_TEST_SUITE_P(All, NcclTopkOnLevels, topk_jobs::specs());

// In every third step the tensors are in host memory, one step is void, and a warm-up begins with
// ratios at which dense elements travel.
TEST_P(NcclTopkOnLevels, gives_the_hosts_bits_and_keeps_back_what_the_host_does) {
  topk_jobs::ByRank expected = topk_jobs::trained_on_hosts(
      on_levels(), [&](World& world, int rank) { return train(world, rank, nullptr, GetParam()); });
  run_nccl_job(on_levels(), [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    EXPECT_EQ(train(world, rank, &framework, GetParam()), topk_jobs::of(expected, rank));
    EXPECT_GE(world.stats().topk.on_device, 4U);
    EXPECT_EQ(world.stats().device_buckets.staged, 0U);
  });
}

class NcclTopkLevels : public ::testing::Test {
 protected:
  void SetUp() override { fake::set_nccl(""); }
};

TEST_F(NcclTopkLevels, every_type_has_the_bits_and_the_saved_state_of_the_hosts_way) {
  for (const DataType dtype :
       {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16, DataType::kBfloat16}) {
    topk_jobs::expect_the_hosts_bytes(on_levels(), kCalls, dtype, -1);
  }
}

// One rank alone sees that, in the shard of its position.
TEST_F(NcclTopkLevels, a_first_or_last_step_that_is_void_leaves_nothing_behind) {
  topk_jobs::expect_the_hosts_bytes(on_levels(), kCalls, DataType::kFloat32, 0);
  topk_jobs::expect_the_hosts_bytes(on_levels(), kCalls, DataType::kFloat32, 3);
}

// From scattering to gathering, everything is with the GPU while nothing comes to the host.
TEST_F(NcclTopkLevels, the_host_waits_for_nothing_between_scattering_and_gathering) {
  run_nccl_job(
      on_levels(),
      [](World& world, int rank) {
        topk_jobs::hold_copies_of_a_step(world, rank, [] {
          EXPECT_TRUE(topk_jobs::comes_true([] {
            return fake::launches() == topk_jobs::kLaunches * kRanks &&
                   fake::operations_of_nccl() == 2 * kCalls[1] * kRanks;  // Of both steps.
          })) << fake::launches()
              << " launches";
        });
        // Lists travel in their full length: of 200 entries, with room for 250.
        EXPECT_EQ(world.stats().topk.sent_bytes, 2 * (16 + 4 + 250 * 6U));
        wait_for_all(world);
      },
      "devices=4");
}

TEST_F(NcclTopkLevels, nothing_but_tables_and_reports_is_copied) {
  run_nccl_job(
      on_levels(),
      [](World& world, int rank) {
        // Two hosts use each GPU of the fake driver.
        const fake::Copies copies = topk_jobs::copies_of_a_step(world, rank);
        EXPECT_EQ(copies.bytes_to_host, 2 * (sizeof(TopkProgress) + 2 * kMergeFlags * sizeof(u32)));
        EXPECT_EQ(copies.bytes_to_device,
                  2 * (sizeof(TopkTensor) + sizeof(MergeTensor) + 2 * sizeof(MergeList)));
      },
      "devices=4");
}

// Some of the shards have no element; where none has any, a rank only agrees on what is void.
TEST_F(NcclTopkLevels, a_bucket_takes_as_many_launches_whatever_it_holds) {
  std::vector<std::size_t> many;
  for (std::size_t i = 0; i < 40; ++i) {
    many.push_back(i % 4 == 0 ? 2 + i % 7 : 400 + i * 37 % 400);
  }
  struct Bucket {
    std::vector<std::size_t> elements;
    int ranks;  // That have something to launch.
  };
  for (const Bucket& bucket : {Bucket{{800}, kRanks}, Bucket{many, kRanks}, Bucket{{5, 3}, 2}}) {
    run_nccl_job(on_levels(), [&](World& world, int rank) {
      const Framework framework(world.topology().local_rank);
      EXPECT_EQ(testing::launches_of_bucket(world, rank, framework, bucket.elements),
                topk_jobs::kLaunches * bucket.ranks)
          << bucket.elements.size();
    });
  }
}

TEST_F(NcclTopkLevels, more_tensors_than_a_table_has_rows_go_in_two) {
  run_nccl_job(
      on_levels(),
      [](World& world, int rank) {
        topk_jobs::reduce_more_than_a_table(world, rank);
        EXPECT_EQ(fake::operations_of_nccl(), 2 * kCalls[1] * kRanks);
        wait_for_all(world);
      },
      "devices=4");
}

TEST_F(NcclTopkLevels, a_rank_that_has_joined_contributes_what_it_kept_back) {
  EXPECT_EQ(topk_jobs::reduced_while_rank_1_has_joined(on_levels("0"), 3),
            topk_jobs::reduced_while_rank_1_has_joined(on_levels("1"), 3));
}

// Of sets too, of which one has a rank on each host: its lists go on one level.
TEST_F(NcclTopkLevels, lanes_and_sets_take_turns_with_dense_buckets) {
  const auto reduced = [](const char* nccl_topk) {
    return topk_jobs::reduced_on_lanes_and_sets(on_levels(nccl_topk), [](const World&) {});
  };
  EXPECT_EQ(reduced("1"), reduced("0"));
}

// No rank takes the sum for a good one. Lists of rank 2 go to rank 0 alone.
TEST_F(NcclTopkLevels, a_rank_whose_list_is_damaged_is_named_on_all) {
  // Of the second rank of each communicator: 2 and 3.
  const auto told =
      topk_jobs::errors_of_job(on_levels(), topk_jobs::on_rank_0(fake::set_nccl, "spoils=1:8"));
  EXPECT_EQ(told.size(), std::size_t{kRanks});
  for (const Status& status : told) {
    EXPECT_EQ(status.code(), ErrorCode::kPeerFailed) << status.message();
    EXPECT_TRUE(status.rank() == 2 || status.rank() == 3) << status.message();
    EXPECT_NE(status.message().find("sent a top-k list that is damaged"), std::string::npos)
        << status.message();
  }
}

TEST_F(NcclTopkLevels, a_failure_of_nccl_or_of_the_driver_ends_the_world_on_all_ranks) {
  const auto told = [](void (*set)(const std::string&), const std::string& settings) {
    return topk_jobs::errors_of_job(on_levels(), topk_jobs::on_rank_0(set, settings));
  };
  for (const char* const settings : {"fail=ncclAllGather:3:2", "fail=ncclAllReduce:3:2"}) {
    EXPECT_TRUE(topk_jobs::has_words(told(fake::set_nccl, settings),
                                     "error of the fake NCCL (NCCL error 3)"))
        << settings;
  }
  EXPECT_TRUE(topk_jobs::has_words(told(fake::set_nccl, "broken=6"), "NCCL"));
  for (const std::string call : {"cuLaunchKernel:719:50", "cuMemcpyDtoHAsync_v2:2:4"}) {
    EXPECT_TRUE(topk_jobs::has_words(told(fake::set, "devices=4,fail=" + call), "CUDA_ERROR"))
        << call;
  }
}

}  // namespace
}  // namespace lightcc::cuda::nccl_topk_levels_test
