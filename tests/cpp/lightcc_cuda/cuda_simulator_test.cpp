// The simulator itself: what a kernel does wrong is an error that says where, not a hang.
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/kernels/portable.hpp"
#include "lightcc_cuda/simulator/simulator.hpp"

namespace lightcc::cuda::cuda_simulator_test {
namespace {

using testing::seed;

struct Arguments {
  u32* words;
};

std::string launch(void (*kernel)(Arguments), u32 blocks, u32 threads, u32* words) {
  const simulator::Shape shape{.blocks = blocks, .threads = threads, .seed = seed()};
  return simulator::launch(shape, kernel, Arguments{words});
}

void leaves_before_barrier(Arguments /*a*/) {
  if (thread_index() == 7) {
    return;
  }
  sync_block();
}

TEST(CudaSimulator, a_barrier_that_a_thread_does_not_reach_is_named) {
  const std::string error = launch(leaves_before_barrier, 3, 64, nullptr);
  EXPECT_NE(error.find("waits at sync_block() for ever; 63 of 64"), std::string::npos) << error;
}

void leaves_before_vote(Arguments /*a*/) {
  if (thread_index() != 40) {
    (void)vote(true);
  }
}

TEST(CudaSimulator, a_vote_that_a_lane_does_not_reach_is_named) {
  const std::string error = launch(leaves_before_vote, 1, 64, nullptr);
  EXPECT_NE(error.find("waits at a warp's vote"), std::string::npos) << error;
}

void asks_for_too_much(Arguments a) {
  LIGHTCC_SHARED(u32, memory, 48 * 1024);
  a.words[0] = memory[thread_index()];
}

TEST(CudaSimulator, more_shared_memory_than_a_gpu_gives_is_an_error) {
  u32 word = 0;
  EXPECT_EQ(launch(asks_for_too_much, 1, 32, &word), "more shared memory than 48 KiB");
}

void draws_numbers(Arguments a) {
  a.words[atomic_add(a.words, 1) + 1] = block_index() * block_threads() + thread_index();
}

TEST(CudaSimulator, threads_and_blocks_run_in_an_order_that_the_seed_decides) {
  constexpr u32 kThreads = 8 * 64;
  const auto order = [&](std::uint64_t from) {
    std::vector<u32> words(kThreads + 1);
    const simulator::Shape shape{.blocks = 8, .threads = 64, .seed = from, .system_threads = 1};
    EXPECT_EQ(simulator::launch(shape, draws_numbers, Arguments{words.data()}), "");
    return words;
  };
  const std::vector<u32> first = order(seed());
  EXPECT_EQ(order(seed()), first);
  EXPECT_NE(order(seed() + 1), first);
  std::vector<u32> sorted(first.begin() + 1, first.end());
  std::sort(sorted.begin(), sorted.end());
  for (u32 i = 0; i < kThreads; ++i) {
    EXPECT_EQ(sorted[i], i);
  }
}

void exchanges_lanes(Arguments a) {
  const u32 lane = thread_index() % kWarpLanes;
  const u32 odd = vote(lane % 2 == 1);
  a.words[thread_index()] = odd + read_lane_across(thread_index(), 5);
}

TEST(CudaSimulator, votes_and_reads_of_lanes_stay_in_their_warp) {
  std::vector<u32> words(96);
  EXPECT_EQ(launch(exchanges_lanes, 1, 96, words.data()), "");
  for (u32 i = 0; i < 96; ++i) {
    EXPECT_EQ(words[i], 0xaaaaaaaaU + (i ^ 5U));
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_simulator_test
