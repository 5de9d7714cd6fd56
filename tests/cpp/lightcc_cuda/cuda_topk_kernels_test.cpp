// Top-k compression in memory of the fake GPU, as planes call it: the bits of host memory's, in
// lists, sums and saved states; what it refuses, and how its calls fail.
#include <algorithm>
#include <cstddef>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

#include "compression/topk_testing.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/staging/launcher.hpp"
#include "lightcc_cuda/staging/topk_kernels.hpp"

namespace lightcc::cuda::cuda_topk_kernels_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

/// Waits for the end of a work.
Status finish(const Result<std::unique_ptr<Work>>& work) {
  LIGHTCC_RETURN_IF_ERROR(work.status());
  while (*work != nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, (*work)->advance());
    if (progress == Progress::kDone) {
      break;
    }
    std::this_thread::yield();
  }
  return {};
}

/// A step of one shard, to its end.
Status compress(CompressionKernels& kernels,
                ShardResidual& state,
                const std::byte* shard,
                const TopkRequest& request,
                std::span<std::byte> list,
                TopkOutcome& outcome) {
  const TopkStep step{
      .state = &state, .shard = shard, .request = request, .list = list, .outcome = &outcome};
  return finish(kernels.compress({&step, 1}));
}

/// A sum, to its end.
Status merge(CompressionKernels& kernels, const TopkSum& sum) {
  return finish(kernels.merge({&sum, 1}));
}

/// Bytes in memory of the GPU.
class OnGpu {
 public:
  OnGpu(const Framework& framework, std::size_t bytes, std::size_t shift = 0)
      : framework_(framework),
        bytes_(bytes),
        shift_(shift),
        memory_(value(
            allocate_device_memory(framework.driver(), std::max<std::size_t>(shift + bytes, 1)))) {}

  std::byte* data() const { return reinterpret_cast<std::byte*>(memory_.get() + shift_); }
  void write(const Buffer& from) const {
    if (bytes_ == 0) {
      return;
    }
    EXPECT_EQ(framework_.driver().call().copy_to_device(
                  memory_.get() + shift_, from.data(), bytes_, framework_.stream()),
              kSuccess);
    framework_.wait();
  }
  Buffer read() const {
    Buffer to(bytes_);
    if (bytes_ == 0) {
      return to;
    }
    EXPECT_EQ(framework_.driver().call().copy_to_host(
                  to.data(), memory_.get() + shift_, bytes_, framework_.stream()),
              kSuccess);
    framework_.wait();
    return to;
  }

 private:
  const Framework& framework_;
  std::size_t bytes_;
  std::size_t shift_;
  DeviceMemory memory_;
};

class CudaTopkKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override { fake::set(""); }

  /// Runs a body with a framework; afterwards nothing of the driver's is left.
  template <typename Body>
  static void with_gpu(const Body& body) {
    const int before = fake::live();
    {
      const std::shared_ptr<Staging> staging = make_staging();
      const Framework framework;
      body(framework, *staging->topk_kernels(0));
    }
    EXPECT_EQ(fake::live(), before);
  }
};

Buffer saved(const ShardResidual& state) {
  Bytes bytes;
  EXPECT_TRUE(state.save(bytes).ok());
  return {bytes.begin(), bytes.end()};
}

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
      // Where blocks begin travels in place of their counts, and no header does.
      const std::size_t blocks = topk_blocks(tensor->size);
      const std::size_t left_out = kTopkHeaderBytes + blocks * sizeof(u32);
      list_bytes += 2 * aligned((blocks + 1) * sizeof(u32)) +
                    aligned(tensor->first_list.size() - left_out) +
                    aligned(outcome.bytes - left_out);
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

TEST_F(CudaTopkKernelsTest, lists_states_and_sums_have_the_bits_of_host_memory) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    const std::vector<double> two_steps(2, 0.0);
    for (const DataType dtype : kGpuTypes) {
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
    for (const Case& c : {
             Case{.sizes = {66000}, .momenta = two_steps},
             // Momentum may come and go. A step that is skipped gives up the velocity it brought.
             Case{.momenta = {0.0, 0.9, 0.9, 0.0, 0.0, 0.5}},
             Case{.momenta = {0.0, 0.9, 0.9, 0.0, 0.9}, .skipped_step = 4},
             // What is saved goes on anywhere.
             Case{.sizes = {9000}, .momenta = {0.5, 0.5, 0.5, 0.5}, .moves = true},
         }) {
      expect_same_steps(framework, kernels, c);
    }
  });
}

std::vector<std::size_t> many_sizes(std::size_t count) {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < count; ++i) {
    sizes.push_back(i % 7 == 3 ? 1 : 1 + i * i * 13 % 3000);
  }
  return sizes;
}

TEST_F(CudaTopkKernelsTest, many_tensors_take_the_launches_and_copies_of_one) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    for (const Case& c :
         {Case{.sizes = many_sizes(40), .momenta = {0.0, 0.0}},
          Case{.sizes = many_sizes(9), .fp16 = true, .momenta = {0.5, 0.5}},
          Case{.dtype = DataType::kBfloat16, .sizes = many_sizes(9), .exact = true}}) {
      Case alone = c;
      alone.sizes = {9001};
      const Calls one = expect_same_steps(framework, kernels, alone);
      EXPECT_EQ(expect_same_steps(framework, kernels, c), one);
      const TopkFormat format{.dtype = c.dtype, .fp16 = c.fp16};
      EXPECT_EQ(one.launches, 15 + (format.has_scales() ? 1 : 0));
      // Reports and lists come; a table of either kind goes, the second one with the lists.
      EXPECT_EQ(one.copies_to_host, 2);
      EXPECT_EQ(one.copies_to_device, 2);
    }
  });
}

TEST_F(CudaTopkKernelsTest, more_tensors_than_a_table_has_take_several) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    const auto launches_of = [&](const std::vector<std::size_t>& sizes) {
      return expect_same_steps(framework, kernels, {.sizes = sizes, .momenta = {0.0}}).launches;
    };
    EXPECT_EQ(launches_of(many_sizes(kMaxTopkTensors + 3)), 2 * launches_of({9}));
  });
}

TEST_F(CudaTopkKernelsTest, shards_without_elements_take_no_launch) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    for (const DataType dtype : kGpuTypes) {
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

// ---- What is refused, and calls that fail.

TEST_F(CudaTopkKernelsTest, refuse_what_they_cannot_do) {
  with_gpu([](const Framework& framework, CompressionKernels& kernels) {
    const auto why = [&](std::size_t numel, std::size_t blocks) {
      return kernels.why_unsupported(DataType::kFloat32, numel, blocks);
    };
    EXPECT_EQ(why(1, 64), "");
    EXPECT_EQ(why(0, 2), "");
    EXPECT_NE(why(std::size_t{1} << 31, 2).find("takes at most 2147483647"), std::string::npos);
    EXPECT_NE(why(1, 65).find("at most 64"), std::string::npos);
    EXPECT_NE(kernels.why_unsupported(DataType::kFloat64, 1, 2).find("float64"), std::string::npos);
    EXPECT_EQ(kernels.make_state(DataType::kFloat64, 100).status().code(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(why(100, 2), "");  // It objects to nothing else because of that.
    EXPECT_EQ(kernels.load_state({}).status().code(), ErrorCode::kInvalidArgument);
    const auto first = value(kernels.make_state(DataType::kFloat32, 100));
    const auto second = value(kernels.make_state(DataType::kFloat16, 100));
    EXPECT_EQ(first->on_host(), nullptr);
    const OnGpu memory(framework, 400);
    memory.write(Buffer(400));
    Buffer list(max_list_bytes(100, 100, {}));
    TopkOutcome outcome;
    const auto step_of = [&](ShardResidual& state, std::size_t k = 1, std::size_t capacity = 1) {
      return TopkStep{.state = &state,
                      .shard = memory.data(),
                      .request = {.k = k, .capacity = capacity},
                      .list = list,
                      .outcome = &outcome};
    };
    const auto refusal_of = [&](const std::vector<TopkStep>& steps) {
      const Status status = kernels.compress(steps).status();
      first->rollback();
      return status;
    };
    const Status mixed = refusal_of({step_of(*first), step_of(*second)});
    EXPECT_EQ(mixed.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(mixed.message().find("float32 and float16"), std::string::npos) << mixed.message();
    EXPECT_EQ(refusal_of({step_of(*first), step_of(*first)}).code(), ErrorCode::kInternal);
    for (const TopkStep& step : {step_of(*first, 0), step_of(*first, 2), step_of(*first, 1, 101)}) {
      EXPECT_EQ(refusal_of({step}).code(), ErrorCode::kInvalidArgument);
    }
    const std::vector<TopkStep> good{step_of(*first)};
    EXPECT_TRUE(finish(kernels.compress(good)).ok());
    EXPECT_EQ(kernels.compress(good).status().code(), ErrorCode::kInternal);  // It is pending.
    Bytes bytes;
    EXPECT_EQ(first->save(bytes).code(), ErrorCode::kInternal);
    const auto sum_of = [&](std::vector<TopkListView> lists, DataType dtype) {
      return TopkSum{
          .lists = std::move(lists), .out = memory.data(), .elements = 100, .dtype = dtype};
    };
    const TopkListView none{.elements = 100, .format = {}, .non_finite = true};
    const TopkSum two_types[] = {sum_of({none}, DataType::kFloat32),
                                 sum_of({none}, DataType::kFloat16)};
    EXPECT_EQ(kernels.merge(two_types).status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(merge(kernels, sum_of({}, DataType::kFloat32)).code(), ErrorCode::kInvalidArgument);
  });
}

TEST_F(CudaTopkKernelsTest, a_gpu_without_memory_or_kernels_objects_from_then_on) {
  with_gpu([](const Framework& /*framework*/, CompressionKernels& kernels) {
    EXPECT_TRUE(kernels.make_state(DataType::kFloat32, 100).ok());
    fake::set("fail=cuMemAllocAsync:2:1");
    const auto made = kernels.make_state(DataType::kFloat32, 100);
    EXPECT_EQ(made.status().code(), ErrorCode::kSystem);
    EXPECT_EQ(kernels.why_unsupported(DataType::kFloat32, 100, 2),
              "cuda:0: cuMemAllocAsync: CUDA_ERROR_OUT_OF_MEMORY (of the fake driver)");
  });
  fake::set("ptx=0");
  with_gpu([](const Framework& /*framework*/, CompressionKernels& kernels) {
    EXPECT_EQ(kernels.make_state(DataType::kFloat32, 100).status().code(),
              ErrorCode::kUnimplemented);
    EXPECT_NE(kernels.why_unsupported(DataType::kFloat32, 100, 2)
                  .find("cannot load the kernels 'bucket'"),
              std::string::npos)
        << kernels.why_unsupported(DataType::kFloat32, 100, 2);
  });
}

// What was told before still counts, though the GPU had not heard of it.
TEST_F(CudaTopkKernelsTest, a_step_whose_job_does_not_run_leaves_the_one_before) {
  with_gpu([](const Framework& framework, CompressionKernels& /*kernels*/) {
    constexpr std::size_t kSize = 3000;
    const auto to_host = std::make_shared<Launcher>(kDriverFile, 0);
    const auto made = make_topk_kernels(to_host, std::make_shared<Launcher>(kDriverFile, 0), 0);
    CompressionKernels& of_gpu = *made;
    const OnGpu memory(framework, kSize * sizeof(float));
    Rng rng(1);
    for (const double momentum : {0.0, 0.9}) {
      for (const bool is_last_committed : {true, false}) {
        const auto on_host = value(host_kernels().make_state(DataType::kFloat32, kSize));
        const auto on_gpu = value(of_gpu.make_state(DataType::kFloat32, kSize));
        TopkOutcome outcome;
        Buffer list(max_list_bytes(kSize, 50, {}));
        TopkRequest request{.k = 40, .capacity = 50, .momentum = momentum};
        for (const bool is_committed : {true, is_last_committed}) {
          const Buffer shard = tensor_of(DataType::kFloat32, normal_values(rng, kSize));
          memory.write(shard);
          ASSERT_TRUE(
              compress(host_kernels(), *on_host, shard.data(), request, list, outcome).ok());
          ASSERT_TRUE(compress(of_gpu, *on_gpu, memory.data(), request, list, outcome).ok());
          for (ShardResidual* const state : {on_host.get(), on_gpu.get()}) {
            is_committed ? state->commit() : state->rollback();
          }
        }
        std::promise<void> goes_on;
        to_host->post([&](const GpuSite& /*gpu*/) {
          goes_on.get_future().wait();
          return Status();
        });
        request.momentum = 0.9 - momentum;
        // The work is dropped before its job runs.
        const TopkStep step{.state = on_gpu.get(),
                            .shard = memory.data(),
                            .request = request,
                            .list = list,
                            .outcome = &outcome};
        ASSERT_TRUE(of_gpu.compress({&step, 1}).ok());
        goes_on.set_value();
        on_gpu->rollback();
        EXPECT_EQ(saved(*on_gpu), saved(*on_host));
      }
    }
  });
}

/// What a step says when its N-th such call fails; nothing where there are fewer.
Status failure_of_step(const std::string& call, int code, int turn) {
  Status failure;
  const std::shared_ptr<Staging> staging = make_staging();
  const Framework framework;
  CompressionKernels& kernels = *staging->topk_kernels(0);
  auto state = value(kernels.make_state(DataType::kFloat32, 100));
  const OnGpu memory(framework, 400);
  memory.write(Buffer(400, std::byte{1}));
  Buffer list(max_list_bytes(100, 10, {}));
  TopkOutcome outcome;
  const TopkRequest request{.k = 10, .capacity = 10, .fp16 = true, .momentum = 0.5};
  const Buffer before = saved(*state);
  fake::set("fail=" + call + ":" + std::to_string(code) + ":" + std::to_string(turn));
  failure = compress(kernels, *state, memory.data(), request, list, outcome);
  if (failure.ok()) {
    const TopkListView view = value(
        parse_list({list.data(), outcome.bytes}, 100, {.dtype = DataType::kFloat32, .fp16 = true}));
    failure = merge(kernels, {.lists = {view}, .out = memory.data(), .elements = 100});
  }
  state->rollback();
  fake::set("");
  EXPECT_EQ(saved(*state), before);
  return failure;
}

TEST_F(CudaTopkKernelsTest, a_call_that_fails_is_a_typed_error_and_undoes_nothing_else) {
  struct Call {
    const char* name;
    int calls;  ///< A step and a merge make so many.
  };
  for (const Call& call : {Call{"cuMemAllocAsync", 2},
                           Call{"cuMemHostAlloc", 2},
                           Call{"cuMemcpyHtoDAsync_v2", 2},
                           Call{"cuMemcpyDtoHAsync_v2", 2},
                           Call{"cuMemsetD8Async", 1},
                           Call{"cuLaunchKernel", 15}}) {
    const int before = fake::live();
    for (int turn = 1; turn <= call.calls; ++turn) {
      const Status failure = failure_of_step(call.name, 2, turn);
      EXPECT_EQ(failure.code(), ErrorCode::kSystem) << call.name << ' ' << turn;
      const std::string name(call.name);
      EXPECT_NE(failure.message().find(name.substr(0, name.find('_'))), std::string::npos)
          << failure.message();
      EXPECT_EQ(fake::live(), before);
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_topk_kernels_test
