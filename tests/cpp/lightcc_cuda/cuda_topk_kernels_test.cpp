// Top-k compression in memory of the fake GPU, as planes call it: the bits of host memory's, in
// lists, sums and saved states.
#include <cstddef>
#include <memory>
#include <optional>
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

using namespace testing;  // NOLINT(google-build-using-namespace)

/// Tensors that are compressed and added up together, step after step.
struct Case {
  DataType dtype = DataType::kFloat32;
  std::vector<std::size_t> sizes = {3001};
  bool exact = false;
  bool fp16 = false;
  std::vector<double> momenta = {0.0, 0.0, 0.0, 0.0};  ///< Each step has its own.
  std::optional<std::size_t> skipped_step{};  ///< In which the first tensor has an infinity.
  bool moves = false;  ///< States change places after each step, by what is saved of them.
};

/// What the calls of the driver are for a step of so many tensors and their sums.
struct Calls {
  int launches = 0;
  int copies_to_host = 0;
  int copies_to_device = 0;
  bool operator==(const Calls&) const = default;
};

/// One side is in host memory, and one on the GPU.
struct TensorOfBoth {
  std::size_t size;
  std::unique_ptr<ShardResidual> on_host;
  std::unique_ptr<ShardResidual> on_gpu;
  OnGpu memory;
  OnGpu sum;
  Buffer shard;
  Buffer first_list = {};
  Buffer lists[2] = {};
  TopkOutcome outcomes[2] = {};
};

/// Where the next one begins, of what is copied together.
std::size_t aligned(std::size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

/// Steps have the bits of host memory's. Returns the calls of the last one.
Calls expect_same_steps(const Framework& framework, CompressionKernels& kernels, const Case& c) {
  CompressionKernels& host = host_kernels();
  Rng rng(seed() * 13 + c.sizes.front());
  const TopkFormat format{.dtype = c.dtype, .fp16 = c.fp16};
  const bool is_alone = c.sizes.size() == 1 && c.sizes.front() > 0;
  std::vector<std::unique_ptr<TensorOfBoth>> tensors;
  for (const std::size_t size : c.sizes) {
    const std::size_t bytes = size * element_size(c.dtype);
    tensors.push_back(std::make_unique<TensorOfBoth>(
        TensorOfBoth{.size = size,
                     .on_host = value(host.make_state(c.dtype, size)),
                     .on_gpu = value(kernels.make_state(c.dtype, size)),
                     .memory = OnGpu(framework, bytes, tensors.size() % 2),
                     .sum = OnGpu(framework, bytes, 1),
                     .shard = Buffer(bytes)}));
  }
  Calls calls;
  for (std::size_t step = 0; step < c.momenta.size(); ++step) {
    LIGHTCC_TRACE(data_type_name(c.dtype) << " x " << c.sizes.front() << ", step " << step);
    std::vector<TopkStep> steps;
    for (const auto& tensor : tensors) {
      for (std::size_t i = 0; i < tensor->size; ++i) {
        put(c.dtype, tensor->shard.data(), i, draw_normal(rng) * (step == 2 ? 3.0 : 1.0));
      }
      if (step == c.skipped_step && tensor == tensors.front()) {
        put(c.dtype, tensor->shard.data(), rng.below(tensor->size), kInfinity);
      }
      tensor->memory.write(tensor->shard);
      const std::size_t k = topk_k(tensor->size, 0.01);
      const TopkRequest request{.k = k,
                                .capacity = c.exact ? k : topk_capacity(k, tensor->size),
                                .exact = c.exact,
                                .fp16 = c.fp16,
                                .momentum = c.momenta[step]};
      for (Buffer& list : tensor->lists) {
        list.assign(max_list_bytes(tensor->size, request.capacity, format), std::byte{0});
      }
      const std::byte* const shard = tensor->shard.data();
      const Status compressed =
          compress(host, *tensor->on_host, shard, request, tensor->lists[0], tensor->outcomes[0]);
      EXPECT_TRUE(compressed.ok()) << compressed.message();
      steps.push_back({.state = tensor->on_gpu.get(),
                       .shard = tensor->memory.data(),
                       .request = request,
                       .list = tensor->lists[1],
                       .outcome = &tensor->outcomes[1]});
    }
    fake::set("");
    const Status compressed = finish(kernels.compress(steps));
    EXPECT_TRUE(compressed.ok()) << compressed.message();
    const fake::Copies of_lists = fake::copies_of(0);
    std::vector<TopkSum> sums;
    std::size_t list_bytes = 0;
    for (const auto& tensor : tensors) {
      const TopkOutcome& outcome = tensor->outcomes[0];
      EXPECT_EQ(tensor->outcomes[1].bytes, outcome.bytes);
      EXPECT_EQ(tensor->outcomes[1].count, outcome.count);
      EXPECT_EQ(tensor->outcomes[1].non_finite, outcome.non_finite);
      EXPECT_EQ(outcome.non_finite, step == c.skipped_step && tensor == tensors.front());
      if (!outcome.non_finite) {
        EXPECT_EQ(tensor->on_gpu->energy().input, tensor->on_host->energy().input);
        EXPECT_EQ(tensor->on_gpu->energy().kept, tensor->on_host->energy().kept);
      }
      for (Buffer& list : tensor->lists) {
        list.resize(outcome.bytes);
      }
      EXPECT_EQ(tensor->lists[1], tensor->lists[0]) << tensor->size << " elements";
      if (step == 0) {
        tensor->first_list = tensor->lists[0];
      }
      list_bytes += aligned(tensor->first_list.size()) + aligned(outcome.bytes);
      sums.push_back({.lists = {value(parse_list(tensor->first_list, tensor->size, format)),
                                value(parse_list(tensor->lists[1], tensor->size, format))},
                      .out = tensor->sum.data(),
                      .elements = tensor->size,
                      .dtype = c.dtype,
                      .postscale = 0.3});
    }
    const Status merged = finish(kernels.merge(sums));
    EXPECT_TRUE(merged.ok()) << merged.message();
    const fake::Copies copies = fake::copies_of(0);
    calls = {.launches = fake::launches(),
             .copies_to_host = copies.to_host,
             .copies_to_device = copies.to_device};
    if (is_alone && step != c.skipped_step) {
      // The list, and what else the host is told; tables go there, and lists with one of them.
      EXPECT_EQ(of_lists.bytes_to_host, tensors.front()->outcomes[1].bytes + sizeof(TopkProgress));
      EXPECT_EQ(of_lists.bytes_to_device, sizeof(TopkTensor));
      EXPECT_EQ(copies.bytes_to_host, of_lists.bytes_to_host);
      EXPECT_EQ(copies.bytes_to_device - of_lists.bytes_to_device,
                list_bytes + aligned(sizeof(MergeTensor)) + aligned(2 * sizeof(MergeList)));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      TensorOfBoth& tensor = *tensors[i];
      Buffer expected(tensor.shard.size());
      sums[i].out = expected.data();
      EXPECT_TRUE(merge(host, sums[i]).ok());
      EXPECT_EQ(tensor.sum.read(), expected);
      EXPECT_EQ(tensor.memory.read(), tensor.shard);
      // Not every step counts for every tensor.
      const bool may_skip = i > 0 || c.skipped_step.has_value();
      const bool is_skipped = may_skip && (step + i) % 3 == 1;
      for (ShardResidual* const state : {tensor.on_host.get(), tensor.on_gpu.get()}) {
        EXPECT_TRUE(state->is_pending());
        is_skipped ? state->rollback() : state->commit();
        EXPECT_FALSE(state->is_pending());
      }
      if (!c.moves && step + 1 < c.momenta.size()) {
        continue;  // A commit waits for the next step, unless it is asked for.
      }
      const Buffer bytes = saved(*tensor.on_gpu);
      EXPECT_EQ(bytes, saved(*tensor.on_host)) << "tensor " << i;
      if (c.moves) {
        tensor.on_gpu = value(kernels.load_state(saved(*tensor.on_host)));
        tensor.on_host = value(host.load_state(bytes));
        EXPECT_EQ(saved(*tensor.on_gpu), bytes);
      }
    }
  }
  return calls;
}

class CudaTopkKernels : public TopkKernelsTest {};

TEST_F(CudaTopkKernels, lists_states_and_sums_have_the_bits_of_host_memory) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    const std::vector<double> two_steps(2, 0.0);
    for (const DataType dtype : kFloatTypes) {
      for (const Case& c : {Case{.sizes = {1}, .momenta = two_steps},
                            Case{.sizes = {8193}},
                            Case{.exact = true},
                            Case{.momenta = {0.9, 0.9, 0.9}},
                            Case{.fp16 = true},
                            Case{.skipped_step = 2}}) {
        Case of_type = c;
        of_type.dtype = dtype;
        expect_same_steps(framework, kernels, of_type);
      }
    }
    expect_same_steps(framework, kernels, {.sizes = {66000}, .momenta = two_steps});
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

TEST_F(CudaTopkKernels, what_is_saved_goes_on_anywhere) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    expect_same_steps(
        framework, kernels, {.sizes = {9000}, .momenta = {0.5, 0.5, 0.5, 0.5}, .moves = true});
  });
}

std::vector<std::size_t> many_sizes(std::size_t count) {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < count; ++i) {
    sizes.push_back(i % 7 == 3 ? 1 : 1 + i * i * 13 % 3000);
  }
  return sizes;
}

TEST_F(CudaTopkKernels, many_tensors_take_the_launches_and_copies_of_one) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    for (const Case& c :
         {Case{.sizes = many_sizes(40), .momenta = {0.0, 0.0}},
          Case{.sizes = many_sizes(9), .fp16 = true, .momenta = {0.5, 0.5}},
          Case{.dtype = DataType::kBfloat16, .sizes = many_sizes(9), .exact = true},
          Case{.dtype = DataType::kFloat64, .sizes = many_sizes(9), .fp16 = true}}) {
      Case alone = c;
      alone.sizes = {9001};
      const Calls one = expect_same_steps(framework, kernels, alone);
      EXPECT_EQ(expect_same_steps(framework, kernels, c), one);
      const int rounds = c.dtype == DataType::kFloat64 ? 6 : 3;
      const TopkFormat format{.dtype = c.dtype, .fp16 = c.fp16};
      EXPECT_EQ(one.launches, 11 + 2 * rounds + (format.has_scales() ? 1 : 0));
      // Reports and lists come; a table of either kind goes, the second one with the lists.
      EXPECT_EQ(one.copies_to_host, 2);
      EXPECT_EQ(one.copies_to_device, 2);
    }
  });
}

TEST_F(CudaTopkKernels, more_tensors_than_a_table_has_take_several) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    const auto launches_of = [&](const std::vector<std::size_t>& sizes) {
      return expect_same_steps(framework, kernels, {.sizes = sizes, .momenta = {0.0}}).launches;
    };
    EXPECT_EQ(launches_of(many_sizes(kMaxTopkTensors + 3)), 2 * launches_of({9}));
  });
}

TEST_F(CudaTopkKernels, shards_without_elements_take_no_launch) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    for (const DataType dtype : kFloatTypes) {
      const auto calls_of = [&](const std::vector<std::size_t>& sizes) {
        return expect_same_steps(framework,
                                 kernels,
                                 {.dtype = dtype,
                                  .sizes = sizes,
                                  .fp16 = true,
                                  .momenta = {0.5, 0.5},
                                  .moves = true});  // What is saved is the host's.
      };
      EXPECT_EQ(calls_of({0, 300, 0, 1}), calls_of({300}));
      EXPECT_EQ(calls_of({0, 0}), Calls());
    }
  });
}

}  // namespace
}  // namespace lightcc::cuda::cuda_topk_kernels_test
