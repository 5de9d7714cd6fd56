// Ranks that have made different numbers of steps of a warm-up, with lists by the fake NCCL, which
// refuses ranks that call it with different counts.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"
#include "lightcc_cuda/compressed_training.hpp"
#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/nccl_jobs.hpp"
#include "lightcc_cuda/nccl_topk_jobs.hpp"
#include "lightcc_cuda/topk_jobs.hpp"

namespace lightcc::cuda::nccl_topk_steps_test {
namespace {

using lightcc::testing::JobOptions;
using lightcc::testing::Numbers;
using lightcc::testing::numbers_of;
namespace topk_jobs = testing::topk_jobs;
using testing::Framework;
using testing::run_nccl_job;

/// Of all ranks: what they get in each step, and what they keep back in the end.
struct Training {
  std::vector<std::vector<Numbers>> results;
  std::vector<SavedCompression> kept;
};

SavedCompression saved_of(const World& world) {
  const auto saved = world.save_compression();
  const bool is_one = saved.ok() && saved->size() == 1;
  EXPECT_TRUE(is_one);
  return is_one ? saved->front() : SavedCompression();
}

/// Rank 1 loads `late` before the third of eight steps. NCCL carries `by_nccl` of them.
Training train(const JobOptions& options,
               const CompressionSpec& spec,
               std::uint64_t by_nccl,
               const SavedCompression* late,
               std::uint64_t steps_at_last) {
  const auto size = static_cast<std::size_t>(options.size);
  Training training{.results = std::vector<std::vector<Numbers>>(size),
                    .kept = std::vector<SavedCompression>(size)};
  run_nccl_job(options, [&](World& world, int rank) {
    const Framework framework(world.topology().local_rank);
    for (int step = 0; step < 8; ++step) {
      if (late != nullptr && rank == 1 && step == 2) {
        EXPECT_TRUE(world.load_compression(*late).ok());
      }
      training.results[static_cast<std::size_t>(rank)].push_back(
          topk_jobs::reduce(world, framework, numbers_of(rank + step, topk_jobs::kCount), spec));
    }
    SavedCompression& kept = training.kept[static_cast<std::size_t>(rank)] = saved_of(world);
    EXPECT_EQ(world.check_compression(kept)->steps, steps_at_last);
    EXPECT_EQ(topk_jobs::buckets_by_nccl(world), by_nccl);
  });
  return training;
}

/// `by_nccl`: of the steps in which all ranks go on from the first one, and NCCL carries lists.
void expect_the_hosts_bits(JobOptions options,
                           const CompressionSpec& spec,
                           std::uint64_t by_nccl,
                           std::uint64_t by_host = 0) {
  fake::set_nccl("");
  options.environment["LIGHT_NCCL_TIMEOUT"] = "20";
  options.environment["LIGHT_NCCL_TOPK"] = "0";
  const Training before = train(options, spec, by_host, nullptr, 8);
  const SavedCompression& late = before.kept[1];
  const Training expected = train(options, spec, by_host, &late, 8);
  options.environment["LIGHT_NCCL_TOPK"] = "1";
  const Training got = train(options, spec, by_nccl, &late, 8);
  EXPECT_EQ(got.results, expected.results);
  for (std::size_t rank = 0; rank < got.kept.size(); ++rank) {
    EXPECT_EQ(got.kept[rank].bytes, expected.kept[rank].bytes) << rank;
    EXPECT_EQ(got.results[rank], got.results.front()) << rank;
  }
  EXPECT_NE(expected.results, before.results);  // The state that was loaded counts.
}

// All lists: of rank 1 they would be shorter.
TEST(NcclTopkSteps, lists_of_a_warm_up_have_one_length_on_all_ranks) {
  expect_the_hosts_bits(topk_jobs::options(), {.ratio = 0.01, .warmup_steps = 6}, 8);
}

// Four ranks exchange pieces in four steps, by way of the host. Rank 1 alone would send a list in
// two.
TEST(NcclTopkSteps, a_rank_past_its_warm_up_sends_dense_elements_as_others_do) {
  JobOptions options = topk_jobs::options();
  const JobOptions four = lightcc::testing::on_hosts({0, 1, 2, 3});
  options.size = four.size;
  options.hosts = four.hosts;
  expect_the_hosts_bits(options, {.ratio = 0.01, .warmup_steps = 100}, 4);
}

TEST(NcclTopkSteps, shards_of_two_levels_do_so_too) {
  expect_the_hosts_bits(
      topk_jobs::options_on_levels(), {.ratio = 0.01, .momentum = 0.5, .warmup_steps = 6}, 8, 8);
}

}  // namespace
}  // namespace lightcc::cuda::nccl_topk_steps_test
