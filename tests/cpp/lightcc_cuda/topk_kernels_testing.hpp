// Top-k compression in memory of the fake GPU, as planes call it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>

#include <gtest/gtest.h>

#include "lightcc/base/bytes.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/residual/host_residual.hpp"

#include "compression/topk_testing.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/gpu_tensors.hpp"
#include "lightcc_cuda/staging/cuda_staging.hpp"

namespace lightcc::cuda::testing {

using lightcc::testing::Buffer;

/// Waits for the end of a work.
inline Status finish(const Result<std::unique_ptr<Work>>& work) {
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
inline Status compress(CompressionKernels& kernels,
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
inline Status merge(CompressionKernels& kernels, const TopkSum& sum) {
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

class TopkKernelsTest : public ::testing::Test {
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

inline Buffer saved(const ShardResidual& state) {
  Bytes bytes;
  EXPECT_TRUE(state.save(bytes).ok());
  return {bytes.begin(), bytes.end()};
}

}  // namespace lightcc::cuda::testing
