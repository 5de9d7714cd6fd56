// merge_lists() against reduce() over the senders of each element: the same bits.
#include "lightcc/compression/topk/merge.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "lightcc/compression/topk/list_writer.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::merge_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

/// Lists of `count` members; every value of a member is its own random draw.
struct Members {
  Members(DataType dtype, std::size_t numel, std::size_t k, std::size_t count, bool fp16 = false) {
    Rng rng(numel + k + count);
    for (std::size_t i = 0; i < count; ++i) {
      HostResidual state(dtype, numel);
      TopkRequest request = exactly(k, detect_simd_level());
      request.fp16 = fp16;
      bytes.push_back(compress(state, tensor_of(dtype, normal_values(rng, numel)), request).list);
    }
    for (const Buffer& list : bytes) {
      views.push_back(parsed(list, numel, {.dtype = dtype, .fp16 = fp16}));
    }
  }
  std::vector<Buffer> bytes;
  std::vector<TopkListView> views;
};

Buffer merged(const std::vector<TopkListView>& lists,
              std::size_t numel,
              DataType dtype,
              double postscale) {
  Buffer out(numel * element_size(dtype) + 1, std::byte{0xa5});
  const Status status = merge_lists(lists, out.data() + 1, numel, dtype, postscale);  // Misaligned.
  EXPECT_TRUE(status.ok()) << status.message();
  return {out.begin() + 1, out.end()};
}

/// Element by element: reduce() over those that have it.
Buffer expected(const std::vector<TopkListView>& lists,
                std::size_t numel,
                DataType dtype,
                double postscale) {
  const std::size_t size = element_size(dtype);
  std::vector<std::vector<double>> senders(numel);
  for (const TopkListView& list : lists) {
    for (const Entry& entry : entries_of(list)) {
      senders[entry.index].push_back(entry.value);
    }
  }
  Buffer out(numel * size);
  for (std::size_t i = 0; i < numel; ++i) {
    if (senders[i].empty()) {
      continue;
    }
    const Buffer values = tensor_of(dtype, senders[i]);
    std::vector<ReduceSource> sources;
    for (std::size_t s = 0; s < senders[i].size(); ++s) {
      sources.push_back({values.data() + s * size});
    }
    reduce(sources,
           out.data() + i * size,
           nullptr,
           1,
           {.dtype = dtype, .postscale = postscale},
           SimdLevel::kPlain);
  }
  return out;
}

TEST(Merge, has_the_bits_of_a_dense_sum_over_the_senders) {
  for (const DataType dtype : kFloatTypes) {
    for (const std::size_t members : {1U, 2U, 3U, 8U}) {
      for (const double postscale : {1.0, 1.0 / 3.0}) {
        for (const std::size_t numel : {std::size_t{1}, std::size_t{300}, std::size_t{66000}}) {
          const Members from(dtype, numel, numel / 4 + 1, members);
          ASSERT_EQ(merged(from.views, numel, dtype, postscale),
                    expected(from.views, numel, dtype, postscale));
        }
      }
    }
  }
}

TEST(Merge, of_complete_lists_is_the_dense_sum) {
  for (const DataType dtype : kFloatTypes) {
    const std::size_t numel = 70000;
    Rng rng(31);
    std::vector<Buffer> shards;
    std::vector<Buffer> lists;
    std::vector<TopkListView> views;
    std::vector<ReduceSource> sources;
    for (int member = 0; member < 4; ++member) {
      shards.push_back(tensor_of(dtype, normal_values(rng, numel)));
      HostResidual state(dtype, numel);
      lists.push_back(compress(state, shards.back(), exactly(numel, detect_simd_level())).list);
    }
    for (int member = 0; member < 4; ++member) {
      views.push_back(parsed(lists[static_cast<std::size_t>(member)], numel, {.dtype = dtype}));
      sources.push_back({shards[static_cast<std::size_t>(member)].data()});
    }
    Buffer dense(numel * element_size(dtype));
    reduce(sources,
           dense.data(),
           nullptr,
           numel,
           {.dtype = dtype, .postscale = 0.25},
           detect_simd_level());
    EXPECT_EQ(merged(views, numel, dtype, 0.25), dense);
  }
}

TEST(Merge, unpacks_float16_and_its_scales_exactly) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    const Members from(dtype, 70000, 5000, 3, true);
    EXPECT_EQ(merged(from.views, 70000, dtype, 0.5), expected(from.views, 70000, dtype, 0.5));
  }
}

/// A list of those elements whose bits are not zeros, or a flagged one, as a peer might send it.
Buffer list_of(DataType dtype, const std::vector<double>& dense) {
  const Buffer tensor = tensor_of(dtype, dense);
  const std::size_t size = element_size(dtype);
  Buffer list(max_list_bytes(dense.size(), dense.size(), {.dtype = dtype}));
  detail::ListWriter writer(list, dense.size(), dense.size(), {.dtype = dtype}, 0);
  std::size_t count = 0;
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != 0.0 || std::signbit(dense[i])) {
      const auto offset = static_cast<std::uint16_t>(i);
      std::memcpy(writer.offsets() + count * sizeof(offset), &offset, sizeof(offset));
      std::memcpy(writer.values() + count * size, tensor.data() + i * size, size);
      ++count;
    }
  }
  writer.finish_block(count);
  const bool is_finite =
      std::ranges::all_of(dense, [](double value) { return std::isfinite(value); });
  list.resize(is_finite ? writer.finish() : writer.finish_non_finite());
  return list;
}

TEST(Merge, begins_with_the_first_senders_value_and_not_with_zero) {
  for (const DataType dtype : kFloatTypes) {
    const Buffer a = list_of(dtype, {-0.0, -0.0, 1.0, 0.0});
    const Buffer b = list_of(dtype, {-0.0, 0.0, -1.0, 0.0});
    const Buffer out =
        merged({parsed(a, 4, {.dtype = dtype}), parsed(b, 4, {.dtype = dtype})}, 4, dtype, 1.0);
    EXPECT_TRUE(std::signbit(get(dtype, out.data(), 0)));   // -0.0 + -0.0
    EXPECT_TRUE(std::signbit(get(dtype, out.data(), 1)));   // -0.0 alone
    EXPECT_FALSE(std::signbit(get(dtype, out.data(), 2)));  // 1.0 - 1.0
    EXPECT_FALSE(std::signbit(get(dtype, out.data(), 3)));  // Nobody.
  }
}

TEST(Merge, adds_in_the_order_of_the_lists) {
  const Buffer a = list_of(DataType::kFloat32, {1e30});
  const Buffer b = list_of(DataType::kFloat32, {-1e30});
  const Buffer c = list_of(DataType::kFloat32, {1.0});
  const auto x = parsed(a, 1, {});
  const auto y = parsed(b, 1, {});
  const auto z = parsed(c, 1, {});
  EXPECT_EQ(get(DataType::kFloat32, merged({x, y, z}, 1, DataType::kFloat32, 1.0).data(), 0), 1.0);
  EXPECT_EQ(get(DataType::kFloat32, merged({x, z, y}, 1, DataType::kFloat32, 1.0).data(), 0), 0.0);
}

TEST(Merge, leaves_zero_where_nobody_sent_whatever_the_postscale) {
  const Buffer a = list_of(DataType::kFloat32, {1.0, 0.0});
  const Buffer out =
      merged({parsed(a, 2, {})}, 2, DataType::kFloat32, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isinf(get(DataType::kFloat32, out.data(), 0)));
  EXPECT_EQ(get(DataType::kFloat32, out.data(), 1), 0.0);
}

TEST(Merge, of_nothing_is_zeros) {
  EXPECT_EQ(merged({}, 100, DataType::kFloat64, 1.0), Buffer(800));
  EXPECT_EQ(merged({}, 0, DataType::kFloat64, 1.0), Buffer());
}

TEST(Merge, one_list_that_is_not_finite_makes_everything_the_one_nan) {
  for (const DataType dtype : kFloatTypes) {
    const Buffer good = list_of(dtype, {1.0, 2.0, 3.0});
    const Buffer bad = list_of(dtype, {1.0, std::numeric_limits<double>::infinity(), 3.0});
    const std::vector<TopkListView> lists = {parsed(good, 3, {.dtype = dtype}),
                                             parsed(bad, 3, {.dtype = dtype})};
    EXPECT_TRUE(any_non_finite(lists));
    EXPECT_FALSE(any_non_finite(std::span(lists).first(1)));
    // The one NaN is reduce()'s.
    const Buffer nan = tensor_of(dtype, {-std::numeric_limits<double>::quiet_NaN()});
    const ReduceSource source{nan.data()};
    Buffer one(element_size(dtype));
    reduce({&source, 1}, one.data(), nullptr, 1, {.dtype = dtype}, SimdLevel::kPlain);
    Buffer all;
    for (int i = 0; i < 3; ++i) {
      all.insert(all.end(), one.begin(), one.end());
    }
    EXPECT_EQ(merged(lists, 3, dtype, 0.5), all);
  }
}

TEST(Merge, an_overflow_of_the_sum_is_infinite_as_in_a_dense_sum) {
  const Buffer a = list_of(DataType::kFloat16, {60000.0});
  const auto view = parsed(a, 1, {.dtype = DataType::kFloat16});
  const Buffer out = merged({view, view}, 1, DataType::kFloat16, 1.0);
  EXPECT_TRUE(std::isinf(get(DataType::kFloat16, out.data(), 0)));
  const Buffer halved = merged({view, view}, 1, DataType::kFloat16, 0.5);
  EXPECT_EQ(get(DataType::kFloat16, halved.data(), 0), 60000.0);
}

TEST(Merge, of_ranges_is_the_range_of_the_merge) {
  const std::size_t numel = 2 * kTopkBlockElems + 50;
  const Members from(DataType::kBfloat16, numel, 3000, 3);
  const Buffer whole = merged(from.views, numel, DataType::kBfloat16, 0.5);
  const std::vector<std::size_t> cuts = {0, 40000, 40001, 65536, 131000, numel};
  for (std::size_t p = 0; p + 1 < cuts.size(); ++p) {
    std::vector<Buffer> parts;
    std::vector<TopkListView> views;
    const std::size_t count = cuts[p + 1] - cuts[p];
    for (const TopkListView& list : from.views) {
      parts.emplace_back(list_range_bytes(list, cuts[p], cuts[p + 1]));
      ASSERT_TRUE(write_list_range(list, cuts[p], cuts[p + 1], parts.back()).ok());
    }
    for (const Buffer& part : parts) {
      const auto view = parse_list(part, count, from.views[0].format, cuts[p] % kTopkBlockElems);
      ASSERT_TRUE(view.ok()) << view.status().message();
      views.push_back(*view);
    }
    const Buffer out = merged(views, count, DataType::kBfloat16, 0.5);
    EXPECT_EQ(std::memcmp(out.data(), whole.data() + cuts[p] * 2, count * 2), 0) << p;
  }
}

TEST(Merge, lists_that_do_not_belong_together_are_an_error_and_nothing_is_written) {
  const Buffer a = list_of(DataType::kFloat32, {1.0, 2.0});
  const Buffer b = list_of(DataType::kFloat32, {1.0, 2.0, 3.0});
  const Buffer c = list_of(DataType::kBfloat16, {1.0, 2.0});
  const auto x = parsed(a, 2, {});
  const auto y = parsed(b, 3, {});
  const auto z = parsed(c, 2, {.dtype = DataType::kBfloat16});
  for (const auto& lists : {std::vector{x, y}, std::vector{x, z}, std::vector{y}}) {
    Buffer out(8, std::byte{7});
    EXPECT_EQ(merge_lists(lists, out.data(), 2, DataType::kFloat32, 1.0).code(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(out, Buffer(8, std::byte{7}));
  }
}

#if defined(__x86_64__)
TEST(Merge, keeps_subnormals_whatever_mode_the_thread_is_in) {
  const Buffer a = list_of(DataType::kFloat32, {1e-40});
  const auto view = parsed(a, 1, {});
  const Buffer normal = merged({view, view}, 1, DataType::kFloat32, 1.0);
  const Buffer shard = tensor_of(DataType::kFloat32, {1e-40, 0.0});
  HostResidual state(DataType::kFloat32, 2);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // Flush to zero, denormals are zero.
  const Buffer flushed = merged({view, view}, 1, DataType::kFloat32, 1.0);
  const auto step = compress(state, shard, exactly(1, detect_simd_level()));
  _mm_setcsr(before);
  EXPECT_EQ(flushed, normal);
  EXPECT_EQ(entries_of(parsed(step.list, 2, {}))[0].value,
            static_cast<double>(static_cast<float>(1e-40)));
}
#endif

}  // namespace
}  // namespace lightcc::merge_test
