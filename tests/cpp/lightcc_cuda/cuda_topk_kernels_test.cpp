// Top-k compression in memory of the fake GPU, as planes call it: the bits of host memory's, in
// lists, sums and saved states.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

#include "compression/topk_testing.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/staging/topk_kernels.hpp"
#include "lightcc_cuda/topk_kernels_testing.hpp"

namespace lightcc::cuda::cuda_topk_kernels_test {
namespace {

using lightcc::testing::Buffer;
using lightcc::testing::draw_normal;
using lightcc::testing::kFloatTypes;
using lightcc::testing::put;
using testing::compress;
using testing::finish;
using testing::Framework;
using testing::merge;
using testing::OnGpu;
using testing::saved;
using testing::seed;
using testing::value;

constexpr int kLists = 3;

/// Where the next one begins, of what is copied together.
std::size_t aligned(std::size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

struct Case {
  DataType dtype = DataType::kFloat32;
  std::size_t size = 3001;
  double ratio = 0.01;
  bool exact = false;
  bool fp16 = false;
  std::vector<double> momenta = {0.0, 0.0, 0.0, 0.0};  ///< Each step has its own.
  std::optional<std::size_t> skipped_step{};           ///< In which an element is infinite.
  std::size_t shift = 0;  ///< How far the shard's address is from an aligned one.
};

class CudaTopkKernels : public testing::TopkKernelsTest {};

/// Steps of two states side by side.
void expect_same_steps(const Framework& framework, CompressionKernels& kernels, const Case& c) {
  CompressionKernels& host = host_kernels();
  Rng rng(seed() * 13 + c.size);
  const TopkFormat format{.dtype = c.dtype, .fp16 = c.fp16};
  auto on_host = value(host.make_state(c.dtype, c.size));
  auto on_gpu = value(kernels.make_state(c.dtype, c.size));
  const std::size_t bytes = c.size * element_size(c.dtype);
  const OnGpu memory(framework, bytes, c.shift);
  const std::size_t k = topk_k(c.size, c.ratio);
  for (std::size_t step = 0; step < c.momenta.size(); ++step) {
    LIGHTCC_TRACE(data_type_name(c.dtype) << " x " << c.size << ", step " << step);
    Buffer shard(bytes);
    for (std::size_t i = 0; i < c.size; ++i) {
      put(c.dtype, shard.data(), i, draw_normal(rng) * (step == 2 ? 3.0 : 1.0));
    }
    if (step == c.skipped_step) {
      put(c.dtype, shard.data(), rng.below(c.size), lightcc::testing::kInfinity);
    }
    memory.write(shard);
    const TopkRequest request{.k = k,
                              .capacity = c.exact ? k : topk_capacity(k, c.size),
                              .exact = c.exact,
                              .fp16 = c.fp16,
                              .momentum = c.momenta[step]};
    Buffer lists[2];
    TopkOutcome outcomes[2];
    for (Buffer& list : lists) {
      list.resize(max_list_bytes(c.size, request.capacity, format));
    }
    ASSERT_TRUE(compress(host, *on_host, shard.data(), request, lists[0], outcomes[0]).ok());
    fake::set("");
    const Status compressed =
        compress(kernels, *on_gpu, memory.data(), request, lists[1], outcomes[1]);
    ASSERT_TRUE(compressed.ok()) << compressed.message();
    // The list, and what else the host is told; a row of arguments goes there.
    EXPECT_EQ(fake::copies_of(0).bytes_to_host, outcomes[1].bytes + sizeof(TopkProgress));
    EXPECT_EQ(fake::copies_of(0).bytes_to_device, sizeof(TopkTensor));
    EXPECT_EQ(outcomes[1].bytes, outcomes[0].bytes);
    EXPECT_EQ(outcomes[1].count, outcomes[0].count);
    EXPECT_EQ(outcomes[1].non_finite, outcomes[0].non_finite);
    EXPECT_EQ(outcomes[0].non_finite, step == c.skipped_step);
    if (step != c.skipped_step) {
      EXPECT_EQ(on_gpu->energy().input, on_host->energy().input);
      EXPECT_EQ(on_gpu->energy().kept, on_host->energy().kept);
    }
    lists[0].resize(outcomes[0].bytes);
    lists[1].resize(outcomes[1].bytes);
    EXPECT_EQ(lists[1], lists[0]);
    EXPECT_EQ(memory.read(), shard);
    const bool is_skipped_elsewhere = step == 1 && c.skipped_step.has_value();
    for (ShardResidual* const state : {on_host.get(), on_gpu.get()}) {
      EXPECT_TRUE(state->is_pending());
      is_skipped_elsewhere ? state->rollback() : state->commit();
      EXPECT_FALSE(state->is_pending());
    }
    ASSERT_EQ(saved(*on_gpu), saved(*on_host));
  }
}

TEST_F(CudaTopkKernels, lists_and_states_have_the_bits_of_host_memory) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    const std::vector<double> two_steps(2, 0.0);
    for (const DataType dtype : kFloatTypes) {
      expect_same_steps(framework, kernels, {.dtype = dtype, .size = 1, .momenta = two_steps});
      expect_same_steps(framework, kernels, {.dtype = dtype, .size = 8193, .shift = 1});
      expect_same_steps(framework, kernels, {.dtype = dtype, .exact = true});
      expect_same_steps(framework, kernels, {.dtype = dtype, .momenta = {0.9, 0.9, 0.9}});
      expect_same_steps(framework, kernels, {.dtype = dtype, .fp16 = true});
    }
    expect_same_steps(framework, kernels, {.size = 66000, .momenta = two_steps});
  });
}

TEST_F(CudaTopkKernels, momentum_may_come_and_go) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    expect_same_steps(framework, kernels, {.momenta = {0.0, 0.9, 0.9, 0.0, 0.0, 0.5}});
    // A step that is skipped gives up the velocity that it brought.
    expect_same_steps(
        framework, kernels, {.momenta = {0.0, 0.9, 0.9, 0.0, 0.9}, .skipped_step = 4});
  });
}

TEST_F(CudaTopkKernels, a_step_that_is_skipped_leaves_what_was_kept_back) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    for (const DataType dtype : kFloatTypes) {
      expect_same_steps(framework, kernels, {.dtype = dtype, .size = 3000, .skipped_step = 2});
    }
  });
}

TEST_F(CudaTopkKernels, what_is_saved_goes_on_anywhere) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    CompressionKernels& host = host_kernels();
    constexpr std::size_t kSize = 9000;
    Rng rng(seed());
    auto expected = value(host.make_state(DataType::kFloat32, kSize));
    auto moving = value(kernels.make_state(DataType::kFloat32, kSize));
    const OnGpu memory(framework, kSize * sizeof(float));
    for (int step = 0; step < 6; ++step) {
      Buffer shard(kSize * sizeof(float));
      for (std::size_t i = 0; i < kSize; ++i) {
        put(DataType::kFloat32, shard.data(), i, draw_normal(rng));
      }
      memory.write(shard);
      const TopkRequest request{.k = 90, .capacity = 113, .momentum = 0.5};
      Buffer list(max_list_bytes(kSize, 113, {}));
      TopkOutcome outcome;
      ASSERT_TRUE(compress(host, *expected, shard.data(), request, list, outcome).ok());
      const bool on_gpu = step % 2 == 0;
      const std::byte* const where = on_gpu ? memory.data() : shard.data();
      ASSERT_TRUE(compress(on_gpu ? kernels : host, *moving, where, request, list, outcome).ok());
      expected->commit();
      moving->commit();
      const Buffer bytes = saved(*moving);
      ASSERT_EQ(bytes, saved(*expected));
      moving = value(on_gpu ? host.load_state(bytes) : kernels.load_state(bytes));
      ASSERT_EQ(saved(*moving), bytes);
    }
    EXPECT_EQ(kernels.load_state({}).status().code(), ErrorCode::kInvalidArgument);
  });
}

TEST_F(CudaTopkKernels, sums_have_the_bits_of_host_memory) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    CompressionKernels& host = host_kernels();
    Rng rng(seed());
    for (const DataType dtype : kFloatTypes) {
      for (const bool fp16 : {false, true}) {
        for (const std::size_t size : {1U, 300U, 66000U}) {
          LIGHTCC_TRACE(data_type_name(dtype) << " x " << size);
          const TopkFormat format{.dtype = dtype, .fp16 = fp16};
          std::vector<Buffer> lists;
          std::vector<TopkListView> views;
          std::size_t list_bytes = 0;
          for (int i = 0; i < kLists; ++i) {
            auto state = value(host.make_state(dtype, size));
            Buffer shard(size * element_size(dtype));
            for (std::size_t at = 0; at < size; ++at) {
              put(dtype, shard.data(), at, draw_normal(rng));
            }
            const std::size_t k = topk_k(size, 0.1);
            Buffer& list = lists.emplace_back(max_list_bytes(size, k, format));
            TopkOutcome outcome;
            const TopkRequest request{.k = k, .capacity = k, .fp16 = fp16};
            ASSERT_TRUE(compress(host, *state, shard.data(), request, list, outcome).ok());
            list.resize(outcome.bytes);
            list_bytes += aligned(outcome.bytes);
          }
          for (const Buffer& list : lists) {
            views.push_back(value(parse_list(list, size, format)));
          }
          Buffer expected(size * element_size(dtype));
          const OnGpu sum(framework, expected.size(), 1);
          const auto sum_into = [&](std::byte* out) {
            return TopkSum{
                .lists = views, .out = out, .elements = size, .dtype = dtype, .postscale = 0.3};
          };
          ASSERT_TRUE(merge(host, sum_into(expected.data())).ok());
          fake::set("");
          ASSERT_TRUE(merge(kernels, sum_into(sum.data())).ok());
          EXPECT_EQ(
              fake::copies_of(0).bytes_to_device,
              list_bytes + aligned(sizeof(MergeTensor)) + aligned(kLists * sizeof(MergeList)));
          EXPECT_EQ(fake::copies_of(0).bytes_to_host, 0U);
          EXPECT_EQ(sum.read(), expected);
          // As for a step that is skipped.
          const TopkListView flagged{
              .elements = size, .format = {.dtype = dtype}, .non_finite = true};
          views = {flagged};
          ASSERT_TRUE(merge(host, sum_into(expected.data())).ok());
          ASSERT_TRUE(merge(kernels, sum_into(sum.data())).ok());
          EXPECT_EQ(sum.read(), expected);
        }
      }
    }
  });
}

/// What the calls of the driver are for a step of so many tensors and their sums.
struct Calls {
  int launches = 0;
  int copies_to_host = 0;
  int copies_to_device = 0;
  bool operator==(const Calls&) const = default;
};

/// Steps of tensors of these sizes at once, each the bits of host memory's. Returns the calls of
/// the last one.
Calls expect_same_steps_at_once(const Framework& framework,
                                CompressionKernels& kernels,
                                const std::vector<std::size_t>& sizes,
                                DataType dtype,
                                const TopkRequest& kind,
                                int num_steps) {
  CompressionKernels& host = host_kernels();
  Rng rng(seed());
  const TopkFormat format{.dtype = dtype, .fp16 = kind.fp16};
  struct Tensor {
    std::size_t size;
    std::unique_ptr<ShardResidual> on_host;
    std::unique_ptr<ShardResidual> on_gpu;
    OnGpu memory;
    OnGpu sum;
    Buffer lists[2] = {};
    TopkOutcome outcomes[2] = {};
  };
  std::vector<std::unique_ptr<Tensor>> tensors;
  for (const std::size_t size : sizes) {
    const std::size_t bytes = size * element_size(dtype);
    tensors.push_back(
        std::make_unique<Tensor>(Tensor{.size = size,
                                        .on_host = value(host.make_state(dtype, size)),
                                        .on_gpu = value(kernels.make_state(dtype, size)),
                                        .memory = OnGpu(framework, bytes, 1),
                                        .sum = OnGpu(framework, bytes, 1)}));
  }
  Calls calls;
  for (int step = 0; step < num_steps; ++step) {
    std::vector<TopkStep> steps;
    for (const auto& tensor : tensors) {
      Buffer shard(tensor->size * element_size(dtype));
      for (std::size_t i = 0; i < tensor->size; ++i) {
        put(dtype, shard.data(), i, draw_normal(rng));
      }
      tensor->memory.write(shard);
      TopkRequest request = kind;
      request.k = topk_k(tensor->size, 0.01);
      request.capacity = kind.exact ? request.k : topk_capacity(request.k, tensor->size);
      for (Buffer& list : tensor->lists) {
        list.assign(max_list_bytes(tensor->size, request.capacity, format), std::byte{0});
      }
      EXPECT_TRUE(
          compress(
              host, *tensor->on_host, shard.data(), request, tensor->lists[0], tensor->outcomes[0])
              .ok());
      steps.push_back({.state = tensor->on_gpu.get(),
                       .shard = tensor->memory.data(),
                       .request = request,
                       .list = tensor->lists[1],
                       .outcome = &tensor->outcomes[1]});
    }
    fake::set("");
    const Status compressed = finish(kernels.compress(steps));
    EXPECT_TRUE(compressed.ok()) << compressed.message();
    std::vector<TopkSum> sums;
    for (const auto& tensor : tensors) {
      EXPECT_EQ(tensor->outcomes[1].bytes, tensor->outcomes[0].bytes);
      for (std::size_t i = 0; i < 2; ++i) {
        tensor->lists[i].resize(tensor->outcomes[i].bytes);
      }
      EXPECT_EQ(tensor->lists[1], tensor->lists[0]) << tensor->size << " elements";
      const TopkListView list = value(parse_list(tensor->lists[1], tensor->size, format));
      sums.push_back({.lists = {list, list},
                      .out = tensor->sum.data(),
                      .elements = tensor->size,
                      .dtype = dtype,
                      .postscale = 0.5});
    }
    const Status merged = finish(kernels.merge(sums));
    EXPECT_TRUE(merged.ok()) << merged.message();
    const fake::Copies copies = fake::copies_of(0);
    calls = {.launches = fake::launches(),
             .copies_to_host = copies.to_host,
             .copies_to_device = copies.to_device};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Tensor& tensor = *tensors[i];
      Buffer expected(tensor.size * element_size(dtype));
      TopkSum on_host = sums[i];
      on_host.out = expected.data();
      EXPECT_TRUE(merge(host, on_host).ok());
      EXPECT_EQ(tensor.sum.read(), expected);
      // Not every step counts for every tensor.
      const bool is_skipped = i > 0 && (static_cast<std::size_t>(step) + i) % 3 == 1;
      for (ShardResidual* const state : {tensor.on_host.get(), tensor.on_gpu.get()}) {
        is_skipped ? state->rollback() : state->commit();
      }
      if (step == num_steps - 1) {
        EXPECT_EQ(saved(*tensor.on_gpu), saved(*tensor.on_host)) << "tensor " << i;
      }
    }
  }
  return calls;
}

std::vector<std::size_t> many_sizes(std::size_t count) {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < count; ++i) {
    sizes.push_back(i % 7 == 3 ? 1 : 1 + i * i * 13 % 3000);
  }
  return sizes;
}

TEST_F(CudaTopkKernels, many_tensors_take_the_launches_and_copies_of_one) {
  struct Kind {
    DataType dtype;
    TopkRequest request;
    std::size_t tensors;
  };
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    for (const Kind& kind : {Kind{DataType::kFloat32, {}, 40},
                             Kind{DataType::kFloat32, {.fp16 = true, .momentum = 0.5}, 9},
                             Kind{DataType::kBfloat16, {.exact = true}, 9},
                             Kind{DataType::kFloat64, {.fp16 = true}, 9}}) {
      LIGHTCC_TRACE(data_type_name(kind.dtype));
      const auto calls_of = [&](const std::vector<std::size_t>& sizes) {
        return expect_same_steps_at_once(framework, kernels, sizes, kind.dtype, kind.request, 2);
      };
      const Calls one = calls_of({9001});
      EXPECT_EQ(calls_of(many_sizes(kind.tensors)), one);
      const int rounds = kind.dtype == DataType::kFloat64 ? 6 : 3;
      const TopkFormat format{.dtype = kind.dtype, .fp16 = kind.request.fp16};
      EXPECT_EQ(one.launches, 11 + 2 * rounds + (format.has_scales() ? 1 : 0));
      // Reports and lists come; a table of either kind goes, the second one with the lists.
      EXPECT_EQ(one.copies_to_host, 2);
      EXPECT_EQ(one.copies_to_device, 2);
    }
  });
}

TEST_F(CudaTopkKernels, more_tensors_than_a_table_has_take_several) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    const auto calls_of = [&](const std::vector<std::size_t>& sizes) {
      return expect_same_steps_at_once(framework, kernels, sizes, DataType::kFloat32, {}, 1);
    };
    EXPECT_EQ(calls_of(many_sizes(kMaxTopkTensors + 3)).launches, 2 * calls_of({9}).launches);
  });
}

TEST_F(CudaTopkKernels, shards_without_elements_take_no_launch) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    for (const DataType dtype : kFloatTypes) {
      const auto calls_of = [&](const std::vector<std::size_t>& sizes) {
        return expect_same_steps_at_once(
            framework, kernels, sizes, dtype, {.fp16 = true, .momentum = 0.5}, 2);
      };
      EXPECT_EQ(calls_of({0, 300, 0, 1}), calls_of({300}));
      EXPECT_EQ(calls_of({0, 0}), Calls());
      // What is saved is the host's, and goes on here.
      auto state = value(host_kernels().make_state(dtype, 0));
      EXPECT_EQ(saved(*value(kernels.load_state(saved(*state)))), saved(*state));
    }
  });
}

}  // namespace
}  // namespace lightcc::cuda::cuda_topk_kernels_test
