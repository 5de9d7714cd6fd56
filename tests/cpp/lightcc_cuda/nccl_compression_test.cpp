// Compressed all-reduces of the fake GPU's tensors: the fake NCCL within hosts, the engine's
// compression of staged shards between them.
#include <cstddef>
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

using namespace testing;  // NOLINT(google-build-using-namespace)
using topk_jobs::kCount;

/// The last tensor is too small for a shard on each rank.
std::vector<Numbers> train(World& world,
                           int rank,
                           const Framework* framework,
                           const CompressionSpec& spec) {
  return testing::train(
      world, rank, framework, spec, {.elements = {kCount, 300, 5}, .infinite_rank = 2});
}

class NcclCompression : public ::testing::TestWithParam<CompressionSpec> {};
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

TEST(NcclCompressionOfShards, copies_lists_alone) {
  const auto body = [](const RankOnGpu& on) {
    Operation operation = on.tensor.in(OpType::kAllreduce, "t");
    operation.request.signature.compression = CompressionSpec{};
    ASSERT_TRUE(run_one(on.world, std::move(operation)).ok());
    wait_for_all(on.world);
    const CompressionCounters counted = on.world.stats().compression;
    // Two hosts use each GPU of the fake driver.
    EXPECT_EQ(fake::copies_of(0).bytes_to_host + fake::copies_of(1).bytes_to_host,
              4 * (counted.sent_bytes + sizeof(TopkProgress)));
    EXPECT_EQ(counted.sent_bytes, 16 + 4 + 200 * 6U);
    EXPECT_EQ(counted.tensors, 1U);
    EXPECT_EQ(counted.on_device, 1U);
    wait_for_all(on.world);
  };
  run_nccl_job_on_tensors(topk_jobs::options_on_levels(), body, 40000);
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

TEST(NcclCompressionOfShards, a_bucket_takes_as_many_launches_whatever_it_holds) {
  const int of_one = launches_of_bucket({800});
  EXPECT_EQ(of_one, (16 + 4) * 4);  // Shards are packed and unpacked for NCCL, twice.
  std::vector<std::size_t> many;
  for (std::size_t i = 0; i < 40; ++i) {
    many.push_back(i % 4 == 0 ? 2 + i % 7 : 400 + i * 37 % 400);  // Some shards have no element.
  }
  EXPECT_EQ(launches_of_bucket(many), of_one);
}

}  // namespace
}  // namespace lightcc::cuda::nccl_compression_test
