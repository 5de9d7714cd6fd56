// Both sides of a step in memory of the fake GPU: the bytes that host memory saves of the same
// steps, however they end.
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/shard.hpp"
#include "lightcc/compression/topk_host_kernels.hpp"

#include "compression/topk_testing.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/staging/launcher.hpp"
#include "lightcc_cuda/staging/topk_kernels.hpp"
#include "lightcc_cuda/topk_kernels_testing.hpp"

namespace lightcc::cuda::cuda_topk_sides_test {
namespace {

using lightcc::testing::Buffer;
using lightcc::testing::kFloatTypes;
using lightcc::testing::kNan;
using lightcc::testing::normal_values;
using lightcc::testing::tensor_of;
using testing::finish;
using testing::Framework;
using testing::OnGpu;
using testing::saved;
using testing::seed;
using testing::value;

enum class End : std::uint8_t { kCommitted, kRolledBack, kNotFinite };

struct Step {
  double momentum = 0.0;
  End end = End::kCommitted;
};

struct Kind {
  DataType dtype = DataType::kFloat32;
  bool exact = false;
  bool fp16 = false;
  std::size_t size = 3001;
};

TopkRequest request_of(const Kind& kind, double momentum) {
  const std::size_t k = topk_k(kind.size, 0.02);
  return {.k = k,
          .capacity = kind.exact ? k : topk_capacity(k, kind.size),
          .exact = kind.exact,
          .fp16 = kind.fp16,
          .momentum = momentum};
}

std::optional<Buffer> other_of(const TopkShardState& state) {
  Bytes bytes;
  const Status status = state.save_other(bytes);
  EXPECT_EQ(status.ok(), state.other_step().has_value()) << status.message();
  if (!status.ok()) {
    EXPECT_EQ(status.code(), ErrorCode::kInternal);
    return std::nullopt;
  }
  return Buffer(bytes.begin(), bytes.end());
}

/// A state of host memory, and one that has the same steps on the GPU by jobs of its own.
class Pair {
 public:
  Pair(const Framework& framework, const Kind& kind)
      : kind_(kind),
        kernels_(to_host_, std::make_shared<Launcher>(kDriverFile, 0), 0),
        memory_(framework, kind.size * element_size(kind.dtype)),
        on_host(value(host_.make_state(kind.dtype, kind.size))),
        on_gpu(value(kernels_.make_state(kind.dtype, kind.size))) {}

  /// Both are pending afterwards. The list of the GPU goes to the host.
  void compress(const Step& step) {
    compress_on_host(step);
    TopkOutcome outcome;
    Buffer list(max_list_bytes(kind_.size, request(step).capacity, format()));
    const Status compressed =
        finish(on_gpu->compress(memory_.data(), request(step), list, outcome));
    ASSERT_TRUE(compressed.ok()) << compressed.message();
    EXPECT_EQ(outcome.non_finite, step.end == End::kNotFinite);
  }
  /// The same, but the GPU's job does not run.
  void compress_in_vain(const Step& step) {
    std::promise<void> goes_on;
    auto blocks = std::make_shared<Job>([&](const GpuSite& /*gpu*/) {
      goes_on.get_future().wait();
      return Status();
    });
    to_host_->post(blocks);
    compress_on_host(step);
    TopkOutcome outcome;
    Buffer list(max_list_bytes(kind_.size, request(step).capacity, format()));
    ASSERT_TRUE(on_gpu->compress(memory_.data(), request(step), list, outcome).ok());
    goes_on.set_value();
    ASSERT_TRUE(to_host_->run([](const GpuSite& /*gpu*/) { return Status(); }).ok());
  }
  void end(const Step& step) const {
    for (TopkShardState* const state : {on_host.get(), on_gpu.get()}) {
      EXPECT_FALSE(state->other_step());
      step.end == End::kCommitted ? state->commit() : state->rollback();
    }
  }
  /// Both are where the host is.
  void expect_same(bool has_other = true) const {
    EXPECT_EQ(on_gpu->step(), on_host->step());
    EXPECT_EQ(saved(*on_gpu), saved(*on_host));
    if (has_other) {
      EXPECT_EQ(on_gpu->other_step(), on_host->other_step());
      EXPECT_EQ(other_of(*on_gpu), other_of(*on_host));
    } else {
      EXPECT_FALSE(other_of(*on_gpu));
    }
    EXPECT_EQ(saved(*on_gpu), saved(*on_host));
  }
  void take(const Step& step) {
    compress(step);
    end(step);
    expect_same();
  }

 private:
  TopkRequest request(const Step& step) const { return request_of(kind_, step.momentum); }
  TopkFormat format() const { return {.dtype = kind_.dtype, .fp16 = kind_.fp16}; }

  void compress_on_host(const Step& step) {
    std::vector<double> values = normal_values(rng_, kind_.size);
    if (step.end == End::kNotFinite) {
      values[rng_.below(kind_.size)] = kNan;
    }
    const Buffer shard = tensor_of(kind_.dtype, values);
    memory_.write(shard);
    TopkOutcome outcome;
    Buffer list(max_list_bytes(kind_.size, request(step).capacity, format()));
    ASSERT_TRUE(finish(on_host->compress(shard.data(), request(step), list, outcome)).ok());
  }

  Kind kind_;
  Rng rng_{seed()};
  HostTopkKernels host_{SimdLevel::kPlain};
  std::shared_ptr<Launcher> to_host_ = std::make_shared<Launcher>(kDriverFile, 0);
  CudaTopkKernels kernels_;
  OnGpu memory_;

 public:
  std::unique_ptr<TopkShardState> on_host;
  std::unique_ptr<TopkShardState> on_gpu;
};

/// Each kind of end after each other, with a velocity that comes and goes.
const std::vector<Step> kSteps{{},
                               {},
                               {.end = End::kRolledBack},
                               {.end = End::kRolledBack},
                               {},
                               {.end = End::kNotFinite},
                               {.end = End::kRolledBack},
                               {.momentum = 0.9, .end = End::kRolledBack},
                               {.momentum = 0.9},
                               {.momentum = 0.9},
                               {.momentum = 0.9, .end = End::kRolledBack},
                               {.momentum = 0.9, .end = End::kNotFinite},
                               {.momentum = 0.9},
                               {.end = End::kRolledBack},
                               {},
                               {.momentum = 0.5, .end = End::kNotFinite},
                               {}};

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const DataType dtype : kFloatTypes) {
    all.push_back({.dtype = dtype});
    all.push_back({.dtype = dtype, .exact = true, .size = 900});
    all.push_back({.dtype = dtype, .fp16 = true, .size = 900});
  }
  all.push_back({.size = 1});
  all.push_back({.size = 9000});
  return all;
}

class CudaTopkSides : public testing::TopkKernelsTest {};

TEST_F(CudaTopkSides, have_the_bytes_of_host_memory_however_steps_end) {
  with_gpu([](const Framework& framework, TopkKernels& /*kernels*/) {
    for (const Kind& kind : kinds()) {
      Pair pair(framework, kind);
      EXPECT_EQ(pair.on_gpu->step(), 0U);
      EXPECT_FALSE(other_of(*pair.on_gpu));
      for (std::size_t i = 0; i < kSteps.size(); ++i) {
        LIGHTCC_TRACE(data_type_name(kind.dtype) << " x " << kind.size << ", step " << i);
        pair.take(kSteps[i]);
      }
    }
  });
}

// What was told before still counts, though the GPU had not heard of it.
TEST_F(CudaTopkSides, a_step_whose_job_does_not_run_leaves_the_one_before) {
  with_gpu([](const Framework& framework, TopkKernels& /*kernels*/) {
    for (const double momentum : {0.0, 0.9}) {
      for (const End last : {End::kCommitted, End::kRolledBack}) {
        Pair pair(framework, {});
        pair.take({.momentum = momentum});
        const Step before{.momentum = momentum, .end = last};
        pair.compress(before);
        pair.end(before);
        const Step step{.momentum = 0.9 - momentum, .end = End::kRolledBack};
        pair.compress_in_vain(step);
        pair.end(step);
        pair.expect_same(false);
        pair.take({.momentum = momentum});
      }
    }
  });
}

TEST_F(CudaTopkSides, one_moves_with_what_is_saved) {
  with_gpu([](const Framework& framework, TopkKernels& kernels) {
    Pair pair(framework, {});
    pair.take({.momentum = 0.9});
    pair.take({.momentum = 0.9});
    const Buffer now = saved(*pair.on_gpu);
    const Buffer before = other_of(*pair.on_gpu).value();
    for (const Buffer& side : {now, before}) {
      const auto loaded = value(kernels.load_state(side));
      EXPECT_EQ(loaded->step(), side == now ? 2U : 1U);
      EXPECT_FALSE(loaded->other_step());
      EXPECT_EQ(saved(*loaded), side);
    }
  });
}

}  // namespace
}  // namespace lightcc::cuda::cuda_topk_sides_test
