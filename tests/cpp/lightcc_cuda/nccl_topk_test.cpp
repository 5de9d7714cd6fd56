// Top-k lists that the fake NCCL carries from GPU to GPU: the bits of lists that go by way of the
// host, and nothing that the host decides between selecting and adding up.
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

namespace lightcc::cuda::nccl_topk_test {
namespace {

using lightcc::testing::JobOptions;
using lightcc::testing::numbers_of;
using lightcc::testing::on_hosts;
namespace topk_jobs = testing::topk_jobs;
using testing::Framework;
using testing::run_nccl_job;
using testing::wait_for_all;
using topk_jobs::ByRank;
using topk_jobs::kCount;
using topk_jobs::kLaunches;
using topk_jobs::kRanks;

/// Of NCCL, in a step of a rank: by the host's way, and by NCCL's.
constexpr std::array<int, 2> kCalls{0, 1};

JobOptions one_rank_a_host(const char* nccl_topk = "1") {
  JobOptions options = topk_jobs::options();
  options.environment["LIGHT_NCCL_TOPK"] = nccl_topk;
  return options;
}

class NcclTopkOfJobs : public ::testing::TestWithParam<CompressionSpec> {
 protected:
  void SetUp() override { fake::set_nccl(""); }
};
INSTANTIATE_TEST_SUITE_P(All, NcclTopkOfJobs, topk_jobs::specs());

// In every third step the tensors are in host memory, one step is void, and a warm-up begins with
// ratios at which dense elements travel.
TEST_P(NcclTopkOfJobs, gives_the_hosts_bits_and_keeps_back_what_the_host_does) {
  ByRank expected = topk_jobs::trained_on_hosts(one_rank_a_host(), GetParam());
  run_nccl_job(one_rank_a_host(), [&](World& world, int rank) {
    const Framework framework;
    EXPECT_EQ(topk_jobs::train(world, rank, &framework, GetParam()), topk_jobs::of(expected, rank));
    EXPECT_GE(world.stats().topk.on_device, 4U);
    EXPECT_GE(topk_jobs::buckets_by_nccl(world), 2U);
  });
}

class NcclTopk : public ::testing::Test {
 protected:
  void SetUp() override { fake::set_nccl(""); }
};

TEST_F(NcclTopk, every_type_has_the_bits_and_the_saved_state_of_the_hosts_way) {
  for (const DataType dtype :
       {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16, DataType::kBfloat16}) {
    topk_jobs::expect_the_hosts_bytes(one_rank_a_host(), kCalls, dtype, -1);
  }
}

// So the first velocity is that of a step that does not count.
TEST_F(NcclTopk, a_first_or_last_step_that_is_void_leaves_nothing_behind) {
  topk_jobs::expect_the_hosts_bytes(one_rank_a_host(), kCalls, DataType::kFloat32, 0);
  topk_jobs::expect_the_hosts_bytes(one_rank_a_host(), kCalls, DataType::kFloat32, 3);
}

// Nothing comes to the host for as long as copies are held, and all is launched.
TEST_F(NcclTopk, the_host_waits_for_nothing_between_selecting_and_adding_up) {
  run_nccl_job(
      one_rank_a_host(),
      [](World& world, int rank) {
        topk_jobs::hold_copies_of_a_step(world, rank, [] {
          EXPECT_TRUE(topk_jobs::comes_true([] { return fake::launches() == kLaunches * kRanks; }))
              << fake::launches();
          EXPECT_LE(fake::copies_of(0).to_device, 2 * kRanks);
        });
        EXPECT_EQ(topk_jobs::buckets_by_nccl(world), 2U);
        // Lists travel in their full length: of 400 entries, with room for 500.
        EXPECT_EQ(world.stats().topk.sent_bytes, 2 * (kRanks - 1) * (16 + 4 + 500 * 6U));
        wait_for_all(world);
      },
      "devices=4");
}

TEST_F(NcclTopk, nothing_but_tables_and_reports_is_copied) {
  run_nccl_job(
      one_rank_a_host(),
      [](World& world, int rank) {
        // All ranks use one GPU of the fake driver here.
        const fake::Copies copies = topk_jobs::copies_of_a_step(world, rank);
        EXPECT_EQ(copies.to_host, 2 * kRanks);
        EXPECT_EQ(copies.bytes_to_host,
                  kRanks * (sizeof(TopkProgress) + kMergeFlags * sizeof(u32)));
        EXPECT_EQ(copies.to_device, 2 * kRanks);
        EXPECT_EQ(copies.bytes_to_device,
                  kRanks * (sizeof(TopkTensor) + sizeof(MergeTensor) + kRanks * sizeof(MergeList)));
      },
      "devices=4");
}

TEST_F(NcclTopk, a_bucket_takes_as_many_launches_whatever_it_holds) {
  for (const std::size_t tensors : {1U, 40U}) {
    run_nccl_job(one_rank_a_host(), [&](World& world, int rank) {
      const Framework framework;
      const int launches =
          testing::launches_of_bucket(world, rank, framework, topk_jobs::sizes(tensors));
      EXPECT_EQ(launches, kLaunches * kRanks) << tensors;
      EXPECT_EQ(topk_jobs::buckets_by_nccl(world), 2U);
    });
  }
}

TEST_F(NcclTopk, more_tensors_than_a_table_has_rows_go_in_two) {
  JobOptions options = on_hosts({0, 1});
  options.environment = one_rank_a_host().environment;
  run_nccl_job(
      options,
      [](World& world, int rank) {
        topk_jobs::reduce_more_than_a_table(world, rank);
        EXPECT_EQ(topk_jobs::buckets_by_nccl(world), 1U);
      },
      "devices=4");
}

TEST_F(NcclTopk, what_is_sent_and_what_is_kept_add_up) {
  run_nccl_job(one_rank_a_host(), [](World& world, int rank) {
    topk_jobs::expect_sums_to_be_whole_at_last(world, rank);
    EXPECT_EQ(topk_jobs::buckets_by_nccl(world), 4U);
    EXPECT_EQ(world.stats().device_buckets.staged, 1U);
  });
}

TEST_F(NcclTopk, a_rank_that_has_joined_contributes_what_it_kept_back) {
  EXPECT_EQ(topk_jobs::reduced_while_rank_1_has_joined(one_rank_a_host("0"), 0),
            topk_jobs::reduced_while_rank_1_has_joined(one_rank_a_host("1"), 3));
}

// Lanes and sets take turns, as NCCL wants; dense ones are among them.
TEST_F(NcclTopk, many_buckets_run_on_two_lanes_and_sub_sets) {
  const ByRank expected =
      topk_jobs::reduced_on_lanes_and_sets(one_rank_a_host("0"), [](const World& /*world*/) {});
  const ByRank results = topk_jobs::reduced_on_lanes_and_sets(
      one_rank_a_host("1"),
      [](const World& world) { EXPECT_EQ(world.stats().device_buckets.staged, 0U); });
  EXPECT_EQ(results, expected);
}

TEST_F(NcclTopk, a_process_set_takes_what_was_kept_back_along_when_it_goes) {
  run_nccl_job(topk_jobs::with_a_set(one_rank_a_host()), [](World& world, int rank) {
    topk_jobs::expect_a_set_to_take_all_along(world, rank, [](const World& of_set) {
      EXPECT_GT(topk_jobs::buckets_by_nccl(of_set), 0U);
    });
  });
}

TEST_F(NcclTopk, what_one_rank_cannot_do_leaves_it_to_the_host_on_all) {
  JobOptions options = one_rank_a_host();
  options.environment["LIGHT_GPU_TOPK"] = "0";
  ByRank expected = topk_jobs::trained_on_hosts(one_rank_a_host(), {});
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework;
    EXPECT_EQ(topk_jobs::train(world, rank, &framework, {}), topk_jobs::of(expected, rank));
    EXPECT_EQ(topk_jobs::buckets_by_nccl(world), 0U);
  });
}

TEST_F(NcclTopk, blocks_of_a_host_and_quantised_tensors_go_by_way_of_the_host) {
  for (const std::vector<int>& hosts : {std::vector{0, 0, 1, 1}, std::vector{0, 0, 1}}) {
    JobOptions options = on_hosts(hosts);
    options.environment = one_rank_a_host().environment;
    run_nccl_job(options, [&](World& world, int rank) {
      const Framework framework(world.topology().local_rank);
      topk_jobs::reduce(world, framework, numbers_of(rank, kCount), {.ratio = 0.02});
      // Blocks are equal, or of one rank.
      EXPECT_EQ(topk_jobs::buckets_by_nccl(world), hosts.size() == 3 ? 1U : 0U);
    });
  }
  run_nccl_job(one_rank_a_host(), [](World& world, int rank) {
    const Framework framework;
    topk_jobs::reduce(
        world, framework, numbers_of(rank, kCount), {.compressor = Compressor::kInt8});
    EXPECT_EQ(topk_jobs::buckets_by_nccl(world), 0U);
  });
}

// No rank takes the sum for a good one.
TEST_F(NcclTopk, a_rank_whose_list_is_damaged_is_named_on_all) {
  for (const int byte : {8, 33}) {  // Of its count of entries, and of an offset.
    const auto told = topk_jobs::errors_of_job(
        one_rank_a_host(),
        topk_jobs::on_rank_0(fake::set_nccl, "spoils=2:" + std::to_string(byte)));
    for (const Status& status : told) {
      EXPECT_EQ(status.code(), ErrorCode::kPeerFailed) << byte;
      EXPECT_EQ(status.rank(), 2) << byte << ": " << status.message();
      EXPECT_NE(status.message().find("rank 2 sent a top-k list that is damaged"),
                std::string::npos)
          << status.message();
    }
  }
}

// No rank can go another way alone.
TEST_F(NcclTopk, a_gpu_without_memory_for_what_is_kept_back_ends_the_world) {
  const auto told = topk_jobs::errors_of_job(
      one_rank_a_host(), topk_jobs::on_rank_0(fake::set, "devices=4,fail=cuMemAlloc_v2:2:1"), 0);
  EXPECT_TRUE(topk_jobs::has_words(told, "CUDA_ERROR_OUT_OF_MEMORY"));
  for (const Status& status : told) {
    EXPECT_GE(status.rank(), 0) << status.message();
  }
}

TEST_F(NcclTopk, a_failure_of_nccl_or_of_the_driver_ends_the_world_on_all_ranks) {
  const auto told = [](void (*set)(const std::string&), const std::string& settings) {
    return topk_jobs::errors_of_job(one_rank_a_host(), topk_jobs::on_rank_0(set, settings));
  };
  EXPECT_TRUE(topk_jobs::has_words(told(fake::set_nccl, "fail=ncclAllGather:3:4"),
                                   "error of the fake NCCL (NCCL error 3)"));
  EXPECT_TRUE(topk_jobs::has_words(told(fake::set_nccl, "broken=5"), "NCCL"));
  for (const std::string call : {"cuLaunchKernel:719:20",
                                 "cuLaunchKernel:2:51",
                                 "cuMemcpyHtoDAsync_v2:2:2",
                                 "cuMemcpyDtoHAsync_v2:2:3",
                                 "cuMemsetD8Async:2:2"}) {
    EXPECT_TRUE(topk_jobs::has_words(told(fake::set, "devices=4,fail=" + call), "CUDA_ERROR"))
        << call;
  }
}

}  // namespace
}  // namespace lightcc::cuda::nccl_topk_test
