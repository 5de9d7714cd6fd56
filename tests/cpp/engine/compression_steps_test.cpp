// Ranks whose states of compression are of different numbers of steps go on together.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/log.hpp"
#include "lightcc/base/mutex.hpp"
#include "lightcc/engine/world.hpp"

#include "engine/every_operation.hpp"
#include "engine/rank_threads.hpp"

namespace lightcc::compression_steps_test {
namespace {

using testing::Numbers;
using testing::numbers_of;

constexpr int kRanks = 4;
constexpr int kLoadingRank = 1;
const std::vector<std::int64_t> kShape{40, 50};

Numbers reduce(World& world, int rank, int step, const CompressionSpec& spec) {
  Numbers data = numbers_of(rank + step, 2000);
  Operation operation = testing::allreduce_of("t", data);
  operation.input.shape = operation.output->shape = kShape;
  operation.request.signature.compression = spec;
  const auto reduced = testing::run_one(world, std::move(operation));
  EXPECT_TRUE(reduced.ok()) << "rank " << rank << ", step " << step << ": "
                            << reduced.status().message();
  return data;
}

testing::JobOptions job_options() {
  testing::JobOptions options = testing::on_hosts({0, 1, 2, 3});
  options.environment["LIGHT_TOPK_THRESHOLD"] = "1";
  return options;
}

SavedCompression saved_of(const World& world) {
  const auto saved = world.save_compression();
  const bool is_one = saved.ok() && saved->size() == 1;
  EXPECT_TRUE(is_one);
  return is_one ? saved->front() : SavedCompression();
}

/// What a rank keeps back after so many steps.
SavedCompression state_after(int steps, const CompressionSpec& spec) {
  SavedCompression state;
  testing::run_job(job_options(), [&](World& world, int rank) {
    for (int step = 0; step < steps; ++step) {
      reduce(world, rank, step, spec);
    }
    if (rank == kLoadingRank) {
      state = saved_of(world);
    }
  });
  return state;
}

class CompressionSteps : public ::testing::TestWithParam<CompressionSpec> {};
INSTANTIATE_TEST_SUITE_P(All,
                         CompressionSteps,
                         ::testing::Values(
                             // Pieces and then lists, which get shorter.
                             CompressionSpec{.ratio = 0.01, .warmup_steps = 6},
                             CompressionSpec{.ratio = 0.01},
                             CompressionSpec{.compressor = Compressor::kInt8}));

// A state after more steps is loaded on one rank, and later one after fewer. So do newcomers of an
// elastic job meet others, and do not have them warm up again.
TEST_P(CompressionSteps, ranks_go_on_with_the_greatest_number_of_steps) {
  const SavedCompression late = state_after(7, GetParam());
  const SavedCompression early = state_after(1, GetParam());
  std::vector<std::vector<Numbers>> results(kRanks);
  testing::run_job(job_options(), [&](World& world, int rank) {
    std::vector<std::uint64_t> made;
    for (int step = 0; step < 9; ++step) {
      if (rank == kLoadingRank && (step == 0 || step == 4)) {
        EXPECT_TRUE(world.load_compression(step == 0 ? late : early).ok());
      }
      results.at(static_cast<std::size_t>(rank)).push_back(reduce(world, rank, step, GetParam()));
      made.push_back(world.check_compression(saved_of(world))->steps);
    }
    EXPECT_EQ(made, (std::vector<std::uint64_t>{8, 9, 10, 11, 12, 13, 14, 15, 16})) << rank;
  });
  for (const std::vector<Numbers>& of_rank : results) {
    EXPECT_EQ(of_rank, results.front());
  }
}

Mutex sink_mutex;
std::vector<std::string> warnings;

TEST(CompressionStepsLog, who_goes_on_at_another_step_says_so_once) {
  const CompressionSpec spec{.ratio = 0.01, .warmup_steps = 6};
  const SavedCompression late = state_after(7, spec);
  warnings.clear();
  set_log_sink([](LogLevel level, const std::string& line) {
    if (level == LogLevel::kWarning && line.find("goes on after") != std::string::npos) {
      const MutexLock lock(sink_mutex);
      warnings.push_back(line);
    }
  });
  testing::run_job(job_options(), [&](World& world, int rank) {
    for (int step = 0; step < 4; ++step) {
      if (rank == kLoadingRank && step % 2 == 0) {
        EXPECT_TRUE(world.load_compression(late).ok());
      }
      reduce(world, rank, step, spec);
    }
  });
  set_log_sink(nullptr);
  // In the first step all but the rank that loads; in the third one that rank, whose state is old.
  ASSERT_EQ(warnings.size(), static_cast<std::size_t>(kRanks));
  EXPECT_NE(warnings.front().find(
                "compression of 'allreduce.t' goes on after 7 steps, and not after 0: "),
            std::string::npos)
      << warnings.front();
}

}  // namespace
}  // namespace lightcc::compression_steps_test
