// The ordered sparse merge on the simulator, against merge_lists(), bit for bit.
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <memory>
#include <span>

#include "lightcc/compression/topk/list_layout.hpp"
#include "lightcc/compression/topk/merge.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

#include "compression/topk_testing.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/kernels/merge.hpp"

namespace lightcc::cuda::cuda_merge_test {
namespace {

using namespace testing;           // NOLINT(google-build-using-namespace)
using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

/// A list of about `ratio` of the elements; those at multiples of 3 are in every list.
Buffer make_list(std::size_t numel, double ratio, const TopkFormat& format, Rng& rng) {
  HostResidual state(format.dtype, numel);
  Buffer shard(numel * element_size(format.dtype));
  for (std::size_t i = 0; i < numel; ++i) {
    put(format.dtype, shard.data(), i, draw_normal(rng) * (i % 300 == 0 ? 100.0 : 1.0));
  }
  const std::size_t k = topk_k(numel, ratio);
  const TopkRequest request{
      .k = k, .capacity = k, .exact = true, .fp16 = format.fp16, .level = SimdLevel::kPlain};
  Buffer list(max_list_bytes(numel, k, format));
  const auto outcome = state.compress(shard.data(), request, list);
  EXPECT_TRUE(outcome.ok());
  list.resize(outcome->bytes);
  return list;
}

class Merge {
 public:
  Merge(DataType dtype, std::size_t elements, std::size_t shift)
      : dtype_(dtype), elements_(elements), out_(elements * element_size(dtype), shift) {}

  /// `list` stays where it is.
  void add(const Buffer& list, bool fp16) {
    const auto view = parse_list(list, elements_, {.dtype = dtype_, .fp16 = fp16});
    ASSERT_TRUE(view.ok()) << view.status().message();
    views_.push_back(*view);
    std::vector<u32>& begins = begins_.emplace_back(1, 0);
    for (std::size_t block = 0; block < view->num_blocks; ++block) {
      begins.push_back(begins.back() + static_cast<u32>(view->block_count(block)));
    }
    lists_.push_back({begins.data(),
                      std::bit_cast<const i16*>(view->exponents),
                      std::bit_cast<const u16*>(view->offsets),
                      std::bit_cast<const u8*>(view->values)});
  }

  /// Sums of one dtype, by the launches of one.
  static void run_together(std::span<Merge* const> merges, double postscale, Rng& rng) {
    std::vector<MergeTensor> rows;
    std::vector<MergeList> lists;
    u64 tiles = 0;
    for (Merge* const merge : merges) {
      rows.push_back(merge->row(postscale));
      rows.back().first = tiles;
      rows.back().first_list = lists.size();
      tiles += tiles_of(merge->elements_, kMergeTile);
      lists.insert(lists.end(), merge->lists_.begin(), merge->lists_.end());
    }
    const MergeArguments arguments{.tensors = rows.data(),
                                   .lists = lists.data(),
                                   .count = static_cast<u32>(rows.size()),
                                   .num_lists = static_cast<u32>(lists.size()),
                                   .dtype = static_cast<u32>(merges.front()->dtype_)};
    testing::run(lightcc_merge, static_cast<u32>(tiles), kMergeThreads, arguments, rng);
  }
  void run(double postscale, Rng& rng) { run_together(std::array{this}, postscale, rng); }

  void expect_bits_of_the_cpu(double postscale) {
    Region wanted(out_.size_bytes());
    EXPECT_TRUE(merge_lists(views_, wanted.bytes(), elements_, dtype_, postscale).ok());
    EXPECT_EQ(out_, wanted);
  }

 private:
  MergeTensor row(double postscale) {
    return {.first = 0,
            .first_list = 0,
            .out = out_.data(),
            .elements = elements_,
            .postscale = postscale,
            .num_lists = static_cast<u32>(lists_.size()),
            .is_nan = any_non_finite(views_) ? 1U : 0U};
  }

  DataType dtype_;
  std::size_t elements_;
  Region out_;
  std::vector<TopkListView> views_;
  std::vector<MergeList> lists_;
  std::deque<std::vector<u32>> begins_;
};

TEST(CudaMerge, sums_of_plain_and_scaled_lists_have_the_bits_of_the_cpu) {
  for (const DataType dtype : kGpuTypes) {
    for (const std::size_t elements : {1U, 4095U, 70000U}) {
      LIGHTCC_TRACE(data_type_name(dtype) << ", " << elements << " elements");
      Rng rng(seed() + elements);
      std::vector<Buffer> lists;
      for (std::size_t i = 0; i < 4; ++i) {
        lists.push_back(make_list(elements, 0.05, {.dtype = dtype, .fp16 = i % 2 == 1}, rng));
      }
      for (const double postscale : {1.0, 1.0 / 3}) {
        Merge merge(dtype, elements, rng.below(16));
        for (std::size_t i = 0; i < lists.size(); ++i) {
          merge.add(lists[i], i % 2 == 1);
        }
        merge.run(postscale, rng);
        merge.expect_bits_of_the_cpu(postscale);
      }
    }
  }
}

TEST(CudaMerge, sums_of_one_launch_do_not_mix) {
  for (const DataType dtype : kGpuTypes) {
    Rng rng(seed());
    const TopkFormat format{.dtype = dtype};
    // Sizes differ, and there are one list, three or as many as there may be.
    std::vector<std::unique_ptr<Merge>> merges;
    std::vector<Merge*> together;
    std::deque<Buffer> lists;
    for (const std::size_t elements : {9000U, 1U, 66000U, 1U, 4096U}) {
      Merge& merge = *merges.emplace_back(std::make_unique<Merge>(dtype, elements, rng.below(16)));
      together.push_back(&merge);
      const std::size_t count = elements == 9000 ? 1 : elements == 4096 ? kMaxMergeLists : 3;
      for (std::size_t i = 0; i < count; ++i) {
        merge.add(lists.emplace_back(make_list(elements, 0.02, format, rng)), false);
      }
    }
    // One of them is not finite, and no other.
    HostResidual state(dtype, 300);
    Buffer shard(300 * element_size(dtype));
    put(dtype, shard.data(), 7, std::nan(""));
    Buffer bad(max_list_bytes(300, 3, format));
    const auto outcome = state.compress(shard.data(), {.k = 3, .capacity = 3}, bad);
    ASSERT_TRUE(outcome.ok());
    bad.resize(outcome->bytes);
    Merge not_finite(dtype, 300, 0);
    not_finite.add(lists.emplace_back(make_list(300, 0.1, format, rng)), false);
    not_finite.add(bad, false);
    together.insert(together.begin() + 2, &not_finite);
    Merge::run_together(together, 0.5, rng);
    for (Merge* const merge : together) {
      merge->expect_bits_of_the_cpu(0.5);
    }
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_merge_test
