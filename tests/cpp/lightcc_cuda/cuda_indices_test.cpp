// Index arithmetic, without any launch.
#include <array>

#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/kernels/indices.hpp"

namespace lightcc::cuda::cuda_indices_test {
namespace {

static_assert(tiles_of(0, 4096) == 0);
static_assert(tiles_of(1, 4096) == 1);
static_assert(tiles_of(4096, 4096) == 1);
static_assert(tiles_of(4097, 4096) == 2);
static_assert(tiles_of(~u64{0}, 4096) == u64{1} << 52);

TEST(CudaIndices, the_row_of_an_element_is_that_of_a_search_from_the_front) {
  Rng rng(testing::seed());
  for (u32 count = 1; count < 40; ++count) {
    std::vector<BucketRow> rows(count);
    for (u32 i = 1; i < count; ++i) {
      rows[i].first = rows[i - 1].first + rng.below(3) * (rng.below(9) == 0 ? u64{1} << 33 : 1);
    }
    for (const BucketRow& looked_for : rows) {
      for (u64 value = looked_for.first; value < looked_for.first + 3; ++value) {
        u32 wanted = 0;
        for (u32 i = 0; i < count; ++i) {
          wanted = rows[i].first <= value ? i : wanted;
        }
        EXPECT_EQ(row_at(rows.data(), count, value), wanted) << "of " << count << " at " << value;
      }
    }
  }
}

TEST(CudaIndices, the_first_offset_from_a_value_is_that_of_a_search_from_the_front) {
  constexpr std::array<u16, 5> kOffsets = {0, 3, 4, 900, 65535};
  for (u32 count = 0; count <= kOffsets.size(); ++count) {
    for (const u64 value : {0U, 1U, 3U, 4U, 5U, 899U, 900U, 901U, 65535U, 65536U}) {
      u32 wanted = 0;
      while (wanted < count && kOffsets[wanted] < value) {
        ++wanted;
      }
      EXPECT_EQ(first_from(kOffsets.data(), count, value), wanted) << count << ", " << value;
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_indices_test
