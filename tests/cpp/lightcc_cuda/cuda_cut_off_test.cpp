// Compressed all-reduces of the fake GPU's tensors that end anywhere, as where a rank dies: each
// rank has what goes with the step if one rank has finished it, and else what was before it. That
// is what host memory has.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"
#include "lightcc/compression/topk_host_kernels.hpp"
#include "lightcc/compression/topk_store.hpp"

#include "compression/cut_off_world.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/topk_kernels_testing.hpp"

namespace lightcc::cuda::cuda_cut_off_test {
namespace {

using lightcc::testing::Buffer;
using lightcc::testing::normal_values;
using lightcc::testing::state_at;
using lightcc::testing::tensor_of;
using lightcc::testing::cut_off::expect_both_sides_anywhere;
using lightcc::testing::cut_off::kPatience;
using lightcc::testing::cut_off::World;
using testing::finish;
using testing::Framework;
using testing::OnGpu;
using testing::value;

class GpuMemory final : public lightcc::testing::cut_off::Memory {
 public:
  GpuMemory(const Framework& framework, TopkKernels& kernels)
      : framework_(framework), kernels_(kernels) {}

  TopkKernels& kernels() override { return kernels_; }
  bool is_of_gpu() const override { return true; }
  std::shared_ptr<std::byte> hold(const Buffer& tensor) override {
    const auto held = std::make_shared<OnGpu>(framework_, tensor.size());
    held->write(tensor);
    return {held, held->data()};
  }
  /// Making a state waits for both threads of the GPU.
  void wait() override {
    if (kernels_.is_busy()) {
      (void)value(kernels_.make_state(DataType::kFloat32, 1));
    }
  }

 private:
  const Framework& framework_;
  TopkKernels& kernels_;
};

class CudaCutOff : public testing::TopkKernelsTest {};

TEST_F(CudaCutOff, leaves_both_sides_of_the_step_to_all_ranks) {
  with_gpu([](const Framework& framework, TopkKernels& kernels) {
    GpuMemory memory(framework, kernels);
    expect_both_sides_anywhere({.blocks = 3}, {.ratio = 0.01}, false, memory);
    const CompressionSpec spec{.ratio = 0.05, .momentum = 0.9, .fp16 = true};
    expect_both_sides_anywhere({.blocks = 2, .exchange_elements = 1}, spec, false, memory);
    expect_both_sides_anywhere({.blocks = 2}, {.ratio = 0.01}, true, memory);
  });
}

TEST_F(CudaCutOff, after_several_steps_since_the_mark_has_what_was_there_then) {
  with_gpu([](const Framework& framework, TopkKernels& kernels) {
    GpuMemory memory(framework, kernels);
    World world({.blocks = 2}, {.ratio = 0.01, .momentum = 0.9}, memory);
    world.finish(0);
    std::vector<std::map<std::string, TopkMoments>> before;
    for (const auto& rank : world.ranks()) {
      before.push_back(rank->moments());
    }
    Rng rng(3);
    for (const std::uint64_t step : {1U, 2U}) {
      world.begin(step);
      ASSERT_LT(world.drive(rng, kPatience), kPatience);
    }
    for (std::size_t rank = 0; rank < before.size(); ++rank) {
      for (const auto& [name, moments] : world.ranks()[rank]->moments()) {
        const TopkSteps at{.steps = 1, .counted = 1};
        const Bytes* const state = state_at(moments, at);
        ASSERT_NE(state, nullptr) << name << " of rank " << rank;
        EXPECT_EQ(*state, *state_at(before[rank].at(name), at));
        EXPECT_NE(state_at(moments, {.steps = 3, .counted = 3}), nullptr);
      }
    }
  });
}

// --- In a store ---------------------------------------------------------------------------------

constexpr std::size_t kNumel = 1000;
const TopkStore::Key kKey{0, "a"};

/// As an item does. `input` is in the memory of the entry's kernels.
void step(TopkEntry& entry, const std::byte* input) {
  ASSERT_TRUE(entry.keep_marked().ok());
  Buffer list(10000);
  TopkOutcome outcome;
  ASSERT_TRUE(finish(entry.state->compress(input, {.k = 20, .capacity = 25}, list, outcome)).ok());
  entry.other_steps = entry.steps++;
  entry.state->commit();
}

TEST_F(CudaCutOff, what_was_marked_is_there_though_a_tensor_has_moved_to_other_memory) {
  with_gpu([](const Framework& framework, TopkKernels& of_gpu) {
    HostTopkKernels host(SimdLevel::kPlain);
    for (const bool begins_on_gpu : {true, false}) {
      TopkStore store(host);
      Rng rng(5);
      const OnGpu memory(framework, kNumel * sizeof(float));
      const auto take = [&](bool on_gpu) {
        const Buffer shard = tensor_of(DataType::kFloat32, normal_values(rng, kNumel));
        memory.write(shard);
        TopkKernels& kernels = on_gpu ? of_gpu : static_cast<TopkKernels&>(host);
        const auto entry =
            value(store.entry(kKey, {.blocks = 2}, DataType::kFloat32, kNumel, kernels));
        step(*entry, on_gpu ? memory.data() : shard.data());
      };
      take(begins_on_gpu);
      store.mark();
      const Bytes marked = value(store.save()).front().second;
      take(begins_on_gpu);
      take(!begins_on_gpu);
      const TopkMoments moments = store.moments().front().second;
      EXPECT_EQ(moments.marked, (TopkSteps{.steps = 1, .counted = 1}));
      for (const std::uint64_t steps : {1U, 2U, 3U}) {
        const Bytes* const state = state_at(moments, {.steps = steps, .counted = steps});
        ASSERT_NE(state, nullptr) << steps;
        EXPECT_EQ(*state == marked, steps == 1);
      }
    }
  });
}

TEST_F(CudaCutOff, a_tensor_that_a_gpu_does_not_give_is_missing_alone) {
  with_gpu([](const Framework& framework, TopkKernels& of_gpu) {
    HostTopkKernels host(SimdLevel::kPlain);
    TopkStore store(host);
    const OnGpu memory(framework, kNumel * sizeof(float));
    Rng rng(6);
    memory.write(tensor_of(DataType::kFloat32, normal_values(rng, kNumel)));
    for (const char* const name : {"a", "b"}) {
      const auto entry =
          value(store.entry({0, name}, {.blocks = 2}, DataType::kFloat32, kNumel, of_gpu));
      step(*entry, memory.data());
    }
    store.mark();
    fake::set("fail=cuMemcpyDtoHAsync_v2:2:2");
    const auto all = store.moments();
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0].first.second, "a");
    EXPECT_TRUE(all[0].second.states.empty());
    EXPECT_EQ(all[0].second.marked, (TopkSteps{.steps = 1, .counted = 1}));
    EXPECT_EQ(all[1].second.states.size(), 2U);
    fake::set("");
    EXPECT_EQ(store.moments().front().second.states.size(), 2U);
  });
}

}  // namespace
}  // namespace lightcc::cuda::cuda_cut_off_test
