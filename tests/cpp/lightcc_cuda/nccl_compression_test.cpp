// Compressed all-reduces of the fake GPU's tensors: the fake NCCL within hosts, the engine's
// compression of staged shards between them.
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
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"
#include "lightcc_cuda/topk_jobs.hpp"

namespace lightcc::cuda::nccl_compression_test {
namespace {

using lightcc::testing::bare;
using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
using lightcc::testing::operation_on;
using lightcc::testing::run_one;
namespace topk_jobs = testing::topk_jobs;
using testing::Framework;
using testing::run_nccl_job;
using testing::Tensor;
using topk_jobs::kCount;

/// The last tensor is too small for a shard on each rank.
std::vector<Numbers> train(World& world,
                           int rank,
                           const Framework* framework,
                           const CompressionSpec& spec) {
  return testing::train(
      world, rank, framework, spec, {.elements = {kCount, 300, 5}, .infinite_rank = 2});
}

class NcclCompression : public ::testing::TestWithParam<CompressionSpec> {
 protected:
  void SetUp() override { fake::set_nccl(""); }
};
INSTANTIATE_TEST_SUITE_P(All,
                         NcclCompression,
                         ::testing::Values(CompressionSpec{.ratio = 0.01, .momentum = 0.5},
                                           CompressionSpec{
                                               .ratio = 0.02, .warmup_steps = 2, .fp16 = true},
                                           CompressionSpec{.ratio = 0.4, .exact = true},
                                           CompressionSpec{.ratio = 1.0},
                                           CompressionSpec{.compressor = Compressor::kInt8},
                                           CompressionSpec{.compressor = Compressor::kInt4}));

TEST_P(NcclCompression, gives_the_hosts_bits_and_keeps_back_what_the_host_does) {
  topk_jobs::ByRank expected = topk_jobs::trained_on_hosts(
      topk_jobs::options_on_levels(),
      [&](World& world, int rank) { return train(world, rank, nullptr, GetParam()); });
  run_nccl_job(topk_jobs::options_on_levels(), [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    EXPECT_EQ(train(world, rank, &framework, GetParam()), topk_jobs::of(expected, rank));
    EXPECT_GT(fake::operations_of_nccl(), 0);
    EXPECT_GT(world.stats().compression.tensors, 3U * testing::CompressedTraining::kSteps - 1U);
    // Second ranks of hosts have no element of the last tensor, and compress the others on GPUs.
    const bool on_device = GetParam().compressor == Compressor::kTopk && GetParam().ratio < 1.0;
    EXPECT_EQ(world.stats().compression.on_device > 0, on_device);
  });
}

class NcclCompressionOfShards : public ::testing::Test {
 protected:
  void SetUp() override { fake::set_nccl(""); }
};

/// Bytes that come to the host, of all ranks, when each reduces 40000 elements; in `sent`, what
/// each of them sent.
std::size_t bytes_to_host(const JobOptions& options, std::uint64_t on_device, std::size_t& sent) {
  std::size_t bytes = 0;
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    Numbers data = numbers_of(rank, 40000);
    const Tensor tensor(framework, data);
    Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
    operation.request.signature.compression = CompressionSpec{};
    ASSERT_TRUE(run_one(world, std::move(operation)).ok());
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    if (rank == 0) {
      // Two hosts use each GPU of the fake driver.
      bytes = fake::copies_of(0).bytes_to_host + fake::copies_of(1).bytes_to_host;
      sent = world.stats().compression.sent_bytes;
    }
    EXPECT_EQ(world.stats().compression.tensors, 1U);
    EXPECT_EQ(world.stats().compression.on_device, on_device);
    ASSERT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
  });
  return bytes;
}

TEST_F(NcclCompressionOfShards, copies_lists_alone) {
  std::size_t list = 0;
  const std::size_t copied = bytes_to_host(topk_jobs::options_on_levels(), 1, list);
  EXPECT_EQ(copied, 4 * (list + sizeof(TopkProgress)));
  EXPECT_EQ(list, 16 + 4 + 200 * 6U);
}

/// Launches of all ranks in a step of a bucket.
int launches_of_bucket(const std::vector<std::size_t>& elements) {
  int launches = 0;
  run_nccl_job(topk_jobs::options_on_levels(), [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    const int counted = testing::launches_of_bucket(world, rank, framework, elements);
    EXPECT_GT(world.stats().compression.on_device, 0U);
    if (rank == 0) {
      launches = counted;
    }
  });
  return launches;
}

TEST_F(NcclCompressionOfShards, a_bucket_takes_as_many_launches_whatever_it_holds) {
  const int of_one = launches_of_bucket({800});
  EXPECT_EQ(of_one, (17 + 4) * 4);  // Shards are packed and unpacked for NCCL, twice.
  std::vector<std::size_t> many;
  for (std::size_t i = 0; i < 40; ++i) {
    many.push_back(i % 4 == 0 ? 2 + i % 7 : 400 + i * 37 % 400);  // Some shards have no element.
  }
  EXPECT_EQ(launches_of_bucket(many), of_one);
}

TEST_F(NcclCompressionOfShards, a_rank_that_has_joined_contributes_zeros) {
  std::array<Numbers, 4> results;
  run_nccl_job(topk_jobs::options_on_levels(), [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    Numbers data = numbers_of(rank, kCount);
    const Tensor tensor(framework, data);
    if (rank != 1) {
      Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
      operation.request.signature.reduce_op = ReduceOp::kSum;
      operation.request.signature.compression = CompressionSpec{.ratio = 1.0};
      const auto reduced = run_one(world, std::move(operation));
      ASSERT_TRUE(reduced.ok()) << reduced.status().message();
      const Numbers got = tensor.read();
      for (std::size_t i = 0; i < got.size(); ++i) {
        float expected = 0.0F;
        for (const int member : {0, 2, 3}) {
          expected += numbers_of(member, kCount)[i];
        }
        ASSERT_EQ(got[i], expected) << i;
      }
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kJoin)).ok());
  });
}

TEST_F(NcclCompressionOfShards, a_failure_of_nccl_ends_the_world_on_all_ranks) {
  run_nccl_job(topk_jobs::options_on_levels(), [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    Numbers data = numbers_of(rank, kCount);
    const Tensor tensor(framework, data);
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    if (rank == 0) {
      fake::set_nccl("fail=ncclReduceScatter:3:6");
    }
    EXPECT_TRUE(run_one(world, bare(OpType::kBarrier)).ok());
    Status failure;
    for (int step = 0; step < 20 && failure.ok(); ++step) {
      Operation operation = tensor.put(operation_on(OpType::kAllreduce, "t", data));
      operation.request.signature.compression = CompressionSpec{};
      failure = run_one(world, std::move(operation)).status();
    }
    EXPECT_NE(failure.message().find("error of the fake NCCL (NCCL error 3)"), std::string::npos)
        << failure.message();
    EXPECT_GE(failure.rank(), 0);
  });
}

}  // namespace
}  // namespace lightcc::cuda::nccl_compression_test
