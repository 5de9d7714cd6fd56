// Top-k lists that the fake NCCL carries between hosts, from GPU to GPU, where it has scattered
// shards within them before: the bits of lists that go by way of the host.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
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

using lightcc::testing::bare;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::on_hosts;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
namespace topk_jobs = testing::topk_jobs;
using testing::Framework;
using testing::run_nccl_job;
using testing::Tensor;
using testing::wait_for_all;
using topk_jobs::kCount;

constexpr int kRanks = 4;
/// Of NCCL, in a step of a rank: shards are scattered and gathered, and lists go between hosts when
/// members have agreed on what is void.
constexpr std::array<int, 2> kCalls{2, 4};

JobOptions on_levels(const std::string& nccl_topk = "1") {
  JobOptions options = on_hosts({0, 0, 1, 1});
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
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
  std::array<std::vector<Numbers>, kRanks> expected;
  lightcc::testing::run_job(on_levels(), [&](World& world, int rank) {
    expected.at(static_cast<std::size_t>(rank)) = train(world, rank, nullptr, GetParam());
  });
  run_nccl_job(on_levels(), [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    EXPECT_EQ(train(world, rank, &framework, GetParam()),
              expected.at(static_cast<std::size_t>(rank)));
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
        const Framework framework(world.topology().local_rank);
        Numbers data = numbers_of(rank, 40000);
        const Tensor tensor(framework, data);
        int before = 0;
        for (int step = 0; step < 2; ++step) {
          wait_for_all(world);
          if (rank == 0 && step == 1) {
            fake::set("devices=4,hold=0:0");
            before = fake::operations_of_nccl();
          }
          wait_for_all(world);
          std::vector<Operation> operations;
          operations.push_back(topk_jobs::compressed(
              tensor.put(operation_on(OpType::kAllreduce, "t", data)), CompressionSpec{}));
          const auto handle = world.start(std::move(operations), {});
          ASSERT_TRUE(handle.ok()) << handle.status().message();
          if (rank == 0 && step == 1) {
            EXPECT_TRUE(topk_jobs::comes_true([&] {
              return fake::launches() == topk_jobs::kLaunches * kRanks &&
                     fake::operations_of_nccl() == before + kCalls[1] * kRanks;
            })) << fake::launches()
                << " launches";
            fake::set("devices=4");
          }
          ASSERT_TRUE(world.wait(*handle, {}).ok());
        }
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
        const Framework framework(world.topology().local_rank);
        Numbers data = numbers_of(rank, 40000);
        const Tensor tensor(framework, data);
        wait_for_all(world);
        if (rank == 0) {
          fake::set("devices=4");
        }
        wait_for_all(world);
        const auto reduced = run_one(
            world,
            topk_jobs::compressed(tensor.put(operation_on(OpType::kAllreduce, "t", data)), {}));
        ASSERT_TRUE(reduced.ok()) << reduced.status().message();
        wait_for_all(world);
        // Two hosts use each GPU of the fake driver.
        const fake::Copies copies = fake::copies_of(0);
        EXPECT_EQ(copies.bytes_to_host, 2 * (sizeof(TopkProgress) + 2 * kMergeFlags * sizeof(u32)));
        EXPECT_EQ(copies.bytes_to_device,
                  2 * (sizeof(TopkTensor) + sizeof(MergeTensor) + 2 * sizeof(MergeList)));
        wait_for_all(world);
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
        const Framework framework(world.topology().local_rank);
        Numbers data = numbers_of(rank, 400);
        std::vector<Tensor> tensors;
        std::vector<Operation> operations;
        tensors.reserve(kMaxTopkTensors + 1);
        for (std::size_t i = 0; i <= kMaxTopkTensors; ++i) {
          operations.push_back(topk_jobs::compressed(
              tensors.emplace_back(framework, data)
                  .put(operation_on(OpType::kAllreduce, "t" + std::to_string(i), data)),
              {}));
        }
        const auto ended = lightcc::testing::run_together(world, std::move(operations));
        ASSERT_TRUE(ended.ok()) << ended.status().message();
        EXPECT_EQ(tensors.front().read(), tensors.back().read());
        wait_for_all(world);
        EXPECT_EQ(fake::operations_of_nccl(), 2 * kCalls[1] * kRanks);
        EXPECT_EQ(world.stats().topk.on_device, kMaxTopkTensors + 1);
        wait_for_all(world);
      },
      "devices=4");
}

TEST_F(NcclTopkLevels, a_rank_that_has_joined_contributes_what_it_kept_back) {
  std::array<Numbers, 2> results;
  for (const std::size_t by_nccl : {0U, 1U}) {
    run_nccl_job(on_levels(std::to_string(by_nccl)), [&](World& world, int rank) {
      const Framework framework(world.topology().local_rank);
      topk_jobs::reduce(world, framework, numbers_of(rank, kCount), {.ratio = 0.02});
      for (int step = 0; step < 2 && rank != 1; ++step) {
        const Numbers got =
            topk_jobs::reduce(world, framework, numbers_of(rank, kCount), {.ratio = 0.02});
        if (rank == 0) {
          results[by_nccl] = got;
        }
      }
      EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
      // Nobody on the rank that has joined waits for the last ones.
      EXPECT_TRUE(topk_jobs::comes_true([&] { return topk_jobs::buckets_by_nccl(world) == 3; }));
    });
  }
  EXPECT_EQ(results[0], results[1]);
}

// Of sets too, of which one has a rank on each host: its lists go on one level.
TEST_F(NcclTopkLevels, lanes_and_sets_take_turns_with_dense_buckets) {
  std::array<std::array<std::vector<Numbers>, kRanks>, 2> results;
  for (const std::size_t by_nccl : {0U, 1U}) {
    JobOptions options = on_levels(std::to_string(by_nccl));
    options.environment["LIGHT_NUM_STREAMS"] = "2";
    options.process_sets = {{0, 2}};
    run_nccl_job(options, [&](World& world, int rank) {
      const Framework framework(world.topology().local_rank);
      std::vector<Numbers> data;
      for (int i = 0; i < 12; ++i) {
        data.push_back(numbers_of(rank + i, 2000));
      }
      std::vector<Tensor> tensors;
      tensors.reserve(data.size());
      for (const Numbers& numbers : data) {
        tensors.emplace_back(framework, numbers);
      }
      for (int step = 0; step < 3; ++step) {
        std::vector<Handle> handles;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          const bool is_of_set = i % 3 == 2;
          if (is_of_set && rank % 2 == 1) {
            continue;
          }
          Operation operation =
              tensors[i].put(operation_on(OpType::kAllreduce, "t" + std::to_string(i), data[i]));
          operation.request.signature.process_set = is_of_set ? 1 : 0;
          if (i % 4 != 3) {
            operation =
                topk_jobs::compressed(std::move(operation), {.ratio = i % 2 == 0 ? 0.02 : 0.05});
          }
          std::vector<Operation> one;
          one.push_back(std::move(operation));
          const auto handle = world.start(std::move(one), {});
          ASSERT_TRUE(handle.ok()) << handle.status().message();
          handles.push_back(*handle);
        }
        for (const Handle& handle : handles) {
          const auto ended = world.wait(handle, {});
          ASSERT_TRUE(ended.ok()) << ended.status().message();
        }
      }
      for (const Tensor& tensor : tensors) {
        results[by_nccl].at(static_cast<std::size_t>(rank)).push_back(tensor.read());
      }
    });
  }
  EXPECT_EQ(results[0], results[1]);
}

// No rank takes the sum for a good one. Lists of rank 2 go to rank 0 alone.
TEST_F(NcclTopkLevels, a_rank_whose_list_is_damaged_is_named_on_all) {
  const auto told = topk_jobs::errors_of_job(on_levels(), [](int rank) {
    if (rank == 0) {
      fake::set_nccl("spoils=1:8");  // Of its second member: of ranks 2 and 3.
    }
  });
  EXPECT_EQ(told.size(), std::size_t{kRanks});
  for (const Status& status : told) {
    EXPECT_EQ(status.code(), ErrorCode::kPeerFailed) << status.message();
    EXPECT_TRUE(status.rank() == 2 || status.rank() == 3) << status.message();
    EXPECT_NE(status.message().find("sent a top-k list that is damaged"), std::string::npos)
        << status.message();
  }
}

TEST_F(NcclTopkLevels, a_failure_of_nccl_or_of_the_driver_ends_the_world_on_all_ranks) {
  const auto set_nccl_on_rank_0 = [](const char* settings) {
    return [settings](int rank) {
      if (rank == 0) {
        fake::set_nccl(settings);
      }
    };
  };
  for (const char* const settings : {"fail=ncclAllGather:3:2", "fail=ncclAllReduce:3:2"}) {
    EXPECT_TRUE(
        topk_jobs::has_words(topk_jobs::errors_of_job(on_levels(), set_nccl_on_rank_0(settings)),
                             "error of the fake NCCL (NCCL error 3)"))
        << settings;
  }
  EXPECT_TRUE(topk_jobs::has_words(
      topk_jobs::errors_of_job(on_levels(), set_nccl_on_rank_0("broken=6")), "NCCL"));
  for (const char* const call : {"cuLaunchKernel:719:50", "cuMemcpyDtoHAsync_v2:2:4"}) {
    const auto told = topk_jobs::errors_of_job(on_levels(), [call](int rank) {
      if (rank == 0) {
        fake::set(std::string("devices=4,fail=") + call);
      }
    });
    EXPECT_TRUE(topk_jobs::has_words(told, "CUDA_ERROR")) << call;
  }
}

}  // namespace
}  // namespace lightcc::cuda::nccl_topk_levels_test
