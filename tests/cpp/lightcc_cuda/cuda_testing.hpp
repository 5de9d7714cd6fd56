// Memory and launches for the tests of kernels, on the simulator or on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"
#include "lightcc/base/types.hpp"

#include "lightcc_cuda/on_gpu/gpu_launch.hpp"
#include "lightcc_cuda/simulator/kernels.hpp"
#include "lightcc_cuda/simulator/simulator.hpp"

namespace lightcc::cuda::testing {

/// What top-k compresses on a GPU.
inline constexpr DataType kGpuTypes[] = {
    DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16};

/// From the commit in CI; CHECK_SEED=N replays a run.
inline std::uint64_t seed() {
  static const char* const text = std::getenv("CHECK_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

/// Where a failed test was: in its message.
#define LIGHTCC_TRACE(what) \
  SCOPED_TRACE(::testing::Message() << what << ", CHECK_SEED=" << lightcc::cuda::testing::seed())

/// Bytes that end where their allocation does, so that AddressSanitizer sees what reads past them.
class Region {
 public:
  /// `shift`: of the first byte, from an address that is aligned to 16.
  explicit Region(std::size_t bytes, std::size_t shift = 0)
      : memory_(shift + bytes, std::byte{0xEE}), shift_(shift) {}

  u8* data() { return reinterpret_cast<u8*>(memory_.data()) + shift_; }
  std::byte* bytes() { return memory_.data() + shift_; }
  std::size_t size_bytes() const { return memory_.size() - shift_; }
  void randomize(Rng& rng) {
    for (std::byte& byte : memory_) {
      byte = static_cast<std::byte>(rng.below(256));
    }
  }
  bool operator==(const Region& other) const {
    return size_bytes() == other.size_bytes() &&
           (size_bytes() == 0 ||
            std::memcmp(
                memory_.data() + shift_, other.memory_.data() + other.shift_, size_bytes()) == 0);
  }

  /// For messages.
  friend void PrintTo(const Region& region, std::ostream* to) {
    *to << region.size_bytes() << " bytes";
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t shift_;
};

/// On the simulator, or on the GPU that LIGHTCC_TEST_GPU names. Then all memory that arguments
/// point to is of operator new.
template <typename Arguments>
void run(void (*kernel)(Arguments),
         std::uint32_t blocks,
         std::uint32_t threads,
         const Arguments& arguments,
         Rng& rng) {
  const simulator::Shape shape{.blocks = blocks, .threads = threads, .seed = rng()};
  if (gpu_launcher != nullptr) {
    EXPECT_EQ(gpu_launcher->launch({.kernel = reinterpret_cast<const void*>(kernel),
                                    .blocks = blocks,
                                    .threads = threads,
                                    .arguments = &arguments,
                                    .bytes = sizeof(arguments),
                                    .tables = tables_of(arguments)}),
              "");
    return;
  }
  EXPECT_EQ(simulator::launch(shape, kernel, arguments), "");
}

}  // namespace lightcc::cuda::testing
