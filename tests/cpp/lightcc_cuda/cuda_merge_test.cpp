// The ordered sparse merge on the simulator, against merge_lists(), bit for bit.
#include <bit>
#include <cmath>
#include <deque>
#include <memory>
#include <span>

#include "lightcc/compression/list_layout.hpp"
#include "lightcc/compression/merge.hpp"

#include "compression/topk_testing.hpp"
#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/kernels/merge.hpp"

namespace lightcc::cuda::cuda_merge_test {
namespace {

using lightcc::testing::Buffer;
using lightcc::testing::draw_normal;
using lightcc::testing::kFloatTypes;
using lightcc::testing::put;
using testing::Region;
using testing::seed;

using Kernel = void (*)(MergeArguments);

Kernel checker_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return lightcc_merge_check_f16;
    case DataType::kBfloat16:
      return lightcc_merge_check_bf16;
    case DataType::kFloat64:
      return lightcc_merge_check_f64;
    default:
      return lightcc_merge_check_f32;
  }
}

Kernel kernel_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return lightcc_merge_f16;
    case DataType::kBfloat16:
      return lightcc_merge_bf16;
    case DataType::kFloat64:
      return lightcc_merge_f64;
    default:
      return lightcc_merge_f32;
  }
}

/// A list of about `ratio` of the elements; those at multiples of 3 are in every list.
Buffer make_list(std::size_t numel, double ratio, const TopkFormat& format, Rng& rng) {
  TopkState state(format.dtype, numel);
  Buffer shard(numel * element_size(format.dtype));
  for (std::size_t i = 0; i < numel; ++i) {
    put(format.dtype, shard.data(), i, draw_normal(rng) * (i % 300 == 0 ? 100.0 : 1.0));
  }
  const std::size_t k = topk_k(numel, ratio);
  const TopkRequest request{
      .k = k, .capacity = k, .exact = true, .fp16 = format.fp16, .level = SimdLevel::kPlain};
  Buffer list(max_list_bytes(numel, k, format));
  const auto outcome = state.compress(shard.data(), 1.0, request, list);
  EXPECT_TRUE(outcome.ok());
  list.resize(outcome->bytes);
  return list;
}

/// The list of elements [begin, end) of a list.
Buffer cut(const Buffer& whole,
           std::size_t numel,
           std::size_t begin,
           std::size_t end,
           const TopkFormat& format) {
  const auto view = parse_list(whole, numel, format);
  EXPECT_TRUE(view.ok());
  Buffer part(list_range_bytes(*view, begin, end));
  EXPECT_TRUE(write_list_range(*view, begin, end, part).ok());
  return part;
}

class Merge {
 public:
  Merge(DataType dtype, std::size_t elements, std::size_t phase, std::size_t shift)
      : dtype_(dtype),
        elements_(elements),
        phase_(phase),
        out_(elements * element_size(dtype), shift) {}

  /// `list` stays where it is.
  void add(const Buffer& list, bool fp16) {
    const auto view = parse_list(list, elements_, {.dtype = dtype_, .fp16 = fp16}, phase_);
    ASSERT_TRUE(view.ok()) << view.status().message();
    views_.push_back(*view);
    capacity_ = std::max(capacity_, view->count);
    lists_.push_back({std::bit_cast<const u64*>(list.data()),
                      std::bit_cast<const u32*>(view->counts),
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
      tiles += tiles_of(merge->phase_ + merge->elements_, kMergeTile);
      lists.insert(lists.end(), merge->lists_.begin(), merge->lists_.end());
    }
    const MergeArguments arguments{.tensors = rows.data(),
                                   .lists = lists.data(),
                                   .count = static_cast<u32>(rows.size()),
                                   .num_lists = static_cast<u32>(lists.size())};
    testing::run(lightcc_merge_begin, arguments.num_lists, kMergeThreads, arguments, rng);
    const DataType dtype = merges.front()->dtype_;
    testing::run(checker_of(dtype), static_cast<u32>(tiles), kMergeThreads, arguments, rng);
    testing::run(kernel_of(dtype), static_cast<u32>(tiles), kMergeThreads, arguments, rng);
  }
  void run(double postscale, Rng& rng) {
    Merge* const alone = this;
    run_together({&alone, 1}, postscale, rng);
  }

  void expect_bits_of_the_cpu(double postscale) {
    Region wanted(out_.size_bytes());
    EXPECT_TRUE(merge_lists(views_, wanted.bytes(), elements_, dtype_, postscale).ok());
    EXPECT_EQ(flags_[0] != 0, any_non_finite(views_));
    EXPECT_EQ(flags_[1], 0U);
    EXPECT_EQ(flags_[2], 0U);
    EXPECT_EQ(out_, wanted);
  }
  /// Those lists alone are flagged, and the sum is NaN.
  void expect_damage(std::uint64_t lists) {
    EXPECT_EQ(damaged_lists(), lists);
    if (lists != 0) {
      EXPECT_EQ(flags_[0], 1U);
      for (std::size_t i = 0; i < elements_; ++i) {
        ASSERT_TRUE(std::isnan(lightcc::testing::get(dtype_, out_.bytes(), i))) << i;
      }
    }
  }

  /// The list at `index` has the bytes of `broken`, of the length of `good`, which it was added as.
  void replace(std::size_t index, const Buffer& good, const Buffer& broken) {
    const auto move = [&](auto*& part) {
      if (part != nullptr) {
        const auto at = std::bit_cast<const std::byte*>(part) - good.data();
        part = std::bit_cast<std::remove_reference_t<decltype(part)>>(broken.data() + at);
      }
    };
    MergeList& list = lists_[index];
    move(list.header);
    move(list.counts);
    move(list.exponents);
    move(list.offsets);
    move(list.values);
  }

  MergeList& first_list() { return lists_.front(); }
  std::uint64_t damaged_lists() const { return flags_[1] | std::uint64_t{flags_[2]} << 32; }

 private:
  MergeTensor row(double postscale) {
    begins_.assign(views_.size() * topk_blocks(elements_, phase_), 0);
    MergeTensor made{};
    made.begins = begins_.data();
    made.flags = flags_.data();
    made.out = out_.data();
    made.elements = elements_;
    made.phase = phase_;
    made.capacity = capacity_;
    made.postscale = postscale;
    made.num_lists = static_cast<u32>(lists_.size());
    made.dtype = static_cast<u32>(dtype_);
    return made;
  }

  DataType dtype_;
  std::size_t elements_;
  std::size_t phase_;
  Region out_;
  std::vector<TopkListView> views_;
  std::vector<MergeList> lists_;
  std::vector<u32> begins_;
  std::vector<u32> flags_ = std::vector<u32>(kMergeFlags);
  std::size_t capacity_ = 0;
};

TEST(CudaMerge, sums_of_plain_and_scaled_lists_have_the_bits_of_the_cpu) {
  for (const DataType dtype : kFloatTypes) {
    for (const std::size_t elements : {1U, 4095U, 70000U}) {
      LIGHTCC_TRACE(data_type_name(dtype) << ", " << elements << " elements");
      Rng rng(seed() + elements);
      std::vector<Buffer> lists;
      for (std::size_t i = 0; i < 4; ++i) {
        lists.push_back(make_list(elements, 0.05, {.dtype = dtype, .fp16 = i % 2 == 1}, rng));
      }
      for (const double postscale : {1.0, 1.0 / 3}) {
        Merge merge(dtype, elements, 0, rng.below(16));
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
  for (const DataType dtype : kFloatTypes) {
    Rng rng(seed());
    const TopkFormat format{.dtype = dtype};
    // Of different sizes, and of one list, three or as many as there may be.
    std::vector<std::unique_ptr<Merge>> merges;
    std::vector<Merge*> together;
    std::deque<Buffer> lists;
    for (const std::size_t elements : {9000U, 1U, 66000U, 1U, 4096U}) {
      Merge& merge =
          *merges.emplace_back(std::make_unique<Merge>(dtype, elements, 0, rng.below(16)));
      together.push_back(&merge);
      const std::size_t count = elements == 9000 ? 1 : elements == 4096 ? kMaxMergeLists : 3;
      for (std::size_t i = 0; i < count; ++i) {
        merge.add(lists.emplace_back(make_list(elements, 0.02, format, rng)), false);
      }
    }
    // One of them is not finite, and no other.
    TopkState state(dtype, 300);
    Buffer shard(300 * element_size(dtype));
    put(dtype, shard.data(), 7, std::nan(""));
    Buffer bad(max_list_bytes(300, 3, format));
    const auto outcome = state.compress(shard.data(), 1.0, {.k = 3, .capacity = 3}, bad);
    ASSERT_TRUE(outcome.ok());
    bad.resize(outcome->bytes);
    Merge not_finite(dtype, 300, 0, 0);
    not_finite.add(bad, false);
    together.insert(together.begin() + 2, &not_finite);
    Merge::run_together(together, 0.5, rng);
    for (Merge* const merge : together) {
      merge->expect_bits_of_the_cpu(0.5);
    }
  }
}

TEST(CudaMerge, lists_of_a_range_keep_the_blocks_of_the_whole) {
  Rng rng(seed());
  constexpr std::size_t kNumel = 140000;
  const TopkFormat format{.dtype = DataType::kFloat32};
  for (const std::size_t begin : {16U, 65536U, 70001U}) {
    const std::size_t end = begin + 66000;
    std::vector<Buffer> lists;
    Merge merge(format.dtype, end - begin, begin % kTopkBlockElems, 0);
    for (std::size_t i = 0; i < 3; ++i) {
      lists.push_back(cut(make_list(kNumel, 0.02, format, rng), kNumel, begin, end, format));
    }
    for (const Buffer& list : lists) {
      merge.add(list, false);
    }
    merge.run(0.5, rng);
    merge.expect_bits_of_the_cpu(0.5);
  }
}

TEST(CudaMerge, one_list_that_is_not_finite_makes_all_elements_nan) {
  for (const DataType dtype : kFloatTypes) {
    Rng rng(seed());
    const Buffer good = make_list(5000, 0.1, {.dtype = dtype}, rng);
    TopkState state(dtype, 5000);
    Buffer shard(5000 * element_size(dtype));
    put(dtype, shard.data(), 4999, std::nan(""));
    Buffer bad(max_list_bytes(5000, 50, {.dtype = dtype}));
    const auto outcome = state.compress(shard.data(), 1.0, {.k = 50, .capacity = 50}, bad);
    ASSERT_TRUE(outcome.ok() && outcome->non_finite);
    bad.resize(outcome->bytes);
    Merge merge(dtype, 5000, 0, 0);
    merge.add(good, false);
    merge.add(bad, false);
    merge.run(1.0, rng);
    merge.expect_bits_of_the_cpu(1.0);
  }
}

TEST(CudaMerge, damaged_lists_are_flagged_and_touch_nothing_outside) {
  Rng rng(seed());
  constexpr std::size_t kNumel = 9000;
  const Buffer good = make_list(kNumel, 0.1, {.dtype = DataType::kFloat32}, rng);
  for (const u32 count : {65536U, 901U, 0xffffffffU, 0U}) {
    Buffer broken = good;
    std::memcpy(broken.data() + kTopkHeaderBytes, &count, sizeof(count));
    Merge merge(DataType::kFloat32, kNumel, 0, 0);
    merge.add(good, false);
    merge.first_list().counts = std::bit_cast<const u32*>(broken.data() + kTopkHeaderBytes);
    merge.run(1.0, rng);
    EXPECT_EQ(merge.damaged_lists(), 1U) << count;
  }
  for (const std::size_t at : {0U, 5U, 8U}) {  // Magic, flags, count.
    Buffer broken = good;
    broken[at] ^= std::byte{2};
    Merge merge(DataType::kFloat32, kNumel, 0, 0);
    merge.add(good, false);
    merge.first_list().header = std::bit_cast<const u64*>(broken.data());
    merge.run(1.0, rng);
    EXPECT_EQ(merge.damaged_lists(), 1U) << at;
  }
  // Offsets outside of the tile, where a search for its end sees good ones alone.
  std::vector<u16> offsets(900, 65535);
  for (std::size_t low = 0; low < offsets.size();) {
    const std::size_t middle = low + (offsets.size() - low) / 2;
    offsets[middle] = 1;
    low = middle + 1;
  }
  Merge merge(DataType::kFloat32, kNumel, 0, 0);
  merge.add(good, false);
  merge.first_list().offsets = offsets.data();
  merge.run(1.0, rng);
  merge.expect_damage(1);
}

// A byte of it is another one. Sums are then NaN, whatever the list says of itself.
TEST(CudaMerge, a_list_is_flagged_where_parse_list_refuses_it_and_nowhere_else) {
  constexpr std::size_t kNumel = 66000;  // A block of the wire format, and a part of one.
  int damaged = 0;
  int sound = 0;
  for (const DataType dtype : kFloatTypes) {
    for (const bool fp16 : {false, true}) {
      Rng rng(seed() + (fp16 ? 1 : 0));
      const TopkFormat format{.dtype = dtype, .fp16 = fp16};
      const Buffer good = make_list(kNumel, 0.0005, format, rng);
      for (int i = 0; i < 24; ++i) {
        Buffer broken = good;
        const std::size_t at = i < 12 ? rng.below(kTopkHeaderBytes + 12) : rng.below(good.size());
        broken[at] = static_cast<std::byte>(rng.below(256));
        if (i == 0) {  // It says that it is not finite, and has entries.
          broken = good;
          broken[lightcc::detail::kFlagsAt] |=
              static_cast<std::byte>(lightcc::detail::kFlagNonFinite);
        }
        LIGHTCC_TRACE(data_type_name(dtype) << ", fp16 " << fp16 << ", byte " << at);
        Merge merge(dtype, kNumel, 0, 0);
        merge.add(good, fp16);
        merge.add(good, fp16);
        merge.replace(1, good, broken);
        merge.run(1.0, rng);
        const bool is_sound = parse_list(broken, kNumel, format).ok();
        merge.expect_damage(is_sound ? 0 : 2);
        (is_sound ? sound : damaged) += 1;
      }
    }
  }
  EXPECT_GT(damaged, 20);
  EXPECT_GT(sound, 5);
}

TEST(CudaMerge, values_and_scales_beyond_their_limits_are_flagged) {
  constexpr std::size_t kNumel = 5000;
  for (const DataType dtype : kFloatTypes) {
    for (const bool fp16 : {false, true}) {
      Rng rng(seed());
      const TopkFormat format{.dtype = dtype, .fp16 = fp16};
      const Buffer good = make_list(kNumel, 0.02, format, rng);
      const auto view = parse_list(good, kNumel, format);
      ASSERT_TRUE(view.ok());
      std::vector<Buffer> others;
      const auto with = [&](const std::byte* at, std::uint16_t bits) {
        Buffer& other = others.emplace_back(good);
        std::memcpy(other.data() + (at - good.data()), &bits, sizeof(bits));
      };
      const std::byte* const high =
          view->values + (view->count - 1) * format.value_bytes() + format.value_bytes() - 2;
      if (format.has_scales()) {
        for (const int bits : {0x77ff, 0x7800, 0xf7ff, 0xf800}) {
          with(high, static_cast<std::uint16_t>(bits));
        }
        for (const int exponent : {-126, -125, 113, 114, -1001, -1000, 1009, 1010}) {
          with(view->exponents, static_cast<std::uint16_t>(exponent));
        }
      } else {
        for (const int bits : {0x7f80, 0xff80, 0x7f7f, 0x7c00, 0x7bff, 0x7ff0, 0x7fef}) {
          with(high, static_cast<std::uint16_t>(bits));
          Buffer& other = others.back();  // Zeros below these bits.
          std::fill_n(other.data() + (high + 2 - good.data()) - format.value_bytes(),
                      format.value_bytes() - 2,
                      std::byte{0});
        }
      }
      for (std::size_t i = 0; i < others.size(); ++i) {
        LIGHTCC_TRACE(data_type_name(dtype) << ", fp16 " << fp16 << ", case " << i);
        Merge merge(dtype, kNumel, 0, 0);
        merge.add(good, fp16);
        merge.replace(0, good, others[i]);
        merge.run(1.0, rng);
        merge.expect_damage(parse_list(others[i], kNumel, format).ok() ? 0 : 1);
      }
    }
  }
}

TEST(CudaMerge, entries_that_do_not_ascend_or_are_outside_are_flagged) {
  Rng rng(seed());
  constexpr std::size_t kBegin = 60000;  // A range of two blocks, of which both are cut.
  constexpr std::size_t kEnd = 70000;
  const TopkFormat format{.dtype = DataType::kFloat32};
  const Buffer good = cut(make_list(140000, 0.05, format, rng), 140000, kBegin, kEnd, format);
  const auto view = parse_list(good, kEnd - kBegin, format, kBegin);
  ASSERT_TRUE(view.ok());
  ASSERT_GT(view->block_count(1), 3U);
  const auto offsets_at = static_cast<std::size_t>(view->offsets - good.data());
  struct Case {
    std::size_t entry;
    std::size_t offset;
  };
  const std::size_t first = view->block_count(0);
  for (const Case& c : {Case{0, kBegin - 1},
                        Case{1, view->offset(0)},
                        Case{first - 2, view->offset(first - 1)},
                        Case{view->count - 1, kEnd - kTopkBlockElems},
                        // The last one that a block of threads looks at.
                        Case{first * 5 / 16 - 1, view->offset(first * 5 / 16)},
                        Case{first / 2, 65535},
                        Case{first + 1, 0}}) {
    LIGHTCC_TRACE("entry " << c.entry << " at " << c.offset);
    Buffer broken = good;
    const auto offset = static_cast<u16>(c.offset);
    std::memcpy(broken.data() + offsets_at + c.entry * sizeof(offset), &offset, sizeof(offset));
    EXPECT_FALSE(parse_list(broken, kEnd - kBegin, format, kBegin).ok());
    Merge merge(format.dtype, kEnd - kBegin, kBegin, 0);
    for (std::size_t i = 0; i < 40; ++i) {
      merge.add(good, false);
    }
    merge.replace(37, good, broken);
    merge.run(1.0, rng);
    merge.expect_damage(std::uint64_t{1} << 37);
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_merge_test
