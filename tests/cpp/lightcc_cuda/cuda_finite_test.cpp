// Finite checks on the simulator, against is_all_finite().
#include <array>

#include "lightcc/compression/finite.hpp"

#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/kernels/finite.hpp"

namespace lightcc::cuda::cuda_finite_test {
namespace {

using testing::Region;
using testing::seed;

struct FloatType {
  DataType dtype;
  void (*kernel)(FiniteArguments);
  u64 infinity;
};

constexpr std::array kTypes = {
    FloatType{DataType::kFloat16, lightcc_find_non_finite_2, 0x7c00},
    FloatType{DataType::kBfloat16, lightcc_find_non_finite_2, 0x7f80},
    FloatType{DataType::kFloat32, lightcc_find_non_finite_4, 0x7f800000},
    FloatType{DataType::kFloat64, lightcc_find_non_finite_8, 0x7ff0000000000000}};

/// The elements end in the type's largest number, an infinity, or a NaN with the least payload.
TEST(CudaFinite, one_infinity_or_nan_anywhere_is_found_and_nothing_else) {
  for (const auto& [dtype, kernel, infinity] : kTypes) {
    for (std::uint64_t round = 0; round < 12; ++round) {
      const std::size_t bytes = element_size(dtype);
      Rng rng(seed() * 50 + round);
      const std::size_t count = 1 + rng.below(round % 3 == 0 ? 20 : 3000);
      Region data(count * bytes, round % 2 == 0 ? 0 : rng.below(16));
      data.randomize(rng);
      for (std::size_t i = 0; i < count; ++i) {  // No exponent of all ones.
        data.data()[i * bytes + bytes - 1] &= 0xbf;
      }
      const u64 bits = infinity + round % 3 - 1;
      std::memcpy(data.data() + rng.below(count) * bytes, &bits, bytes);
      Region aligned(count * bytes);
      std::memcpy(aligned.data(), data.data(), count * bytes);
      const bool wanted = !is_all_finite(aligned.bytes(), count, dtype);
      LIGHTCC_TRACE(data_type_name(dtype) << ", " << count << " elements, round " << round);
      EXPECT_EQ(wanted, round % 3 != 0);
      std::vector<u32> found(1);
      const FiniteArguments arguments{data.data(), count, infinity, found.data()};
      testing::run(kernel, static_cast<u32>(1 + rng.below(3)), kFiniteThreads, arguments, rng);
      EXPECT_EQ(found[0] != 0, wanted);
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_finite_test
