// The wire format: golden bytes in both directions, every check of the parser, cutting into ranges,
// and lists of what is not zero.
#include "lightcc/compression/topk/topk_list.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/bytes.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::topk_list_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

/// Two elements of a tensor of 65538: 1.0 at 3, -2.0 at 65537.
const std::vector<unsigned> kGolden = {
    'L', 'T', 'K',  1,    7, 0, 0,    0,     // magic and version, float32, flags, phase
    2,   0,   0,    0,    0, 0, 0,    0,     // entries
    1,   0,   0,    0,    1, 0, 0,    0,     // of each block
    3,   0,   1,    0,                       // offsets
    0,   0,   0x80, 0x3f, 0, 0, 0x00, 0xc0,  // values
};

/// The same with float16 and scales: 2^14 * 2^-14 and -2^14 * 2^-13.
const std::vector<unsigned> kGoldenFp16 = {
    'L',  'T',  'K',  1,    7, 2, 0, 0,  // flag 2: scales
    2,    0,    0,    0,    0, 0, 0, 0,  // entries
    1,    0,    0,    0,    1, 0, 0, 0,  // of each block
    0xf2, 0xff, 0xf3, 0xff,              // exponents -14 and -13
    3,    0,    1,    0,                 // offsets
    0,    0x74, 0,    0xf4,              // values
};

Buffer two_elements(bool fp16) {
  std::vector<double> values(65538, 0.0);
  values[3] = 1.0;
  values[65537] = -2.0;
  HostResidual state(DataType::kFloat32, values.size());
  TopkRequest request = exactly(2, SimdLevel::kPlain);
  request.fp16 = fp16;
  return compress(state, tensor_of(DataType::kFloat32, values), request).list;
}

TEST(TopkList, golden_bytes_are_written) {
  EXPECT_EQ(two_elements(false), bytes_of(kGolden));
  EXPECT_EQ(two_elements(true), bytes_of(kGoldenFp16));
}

TEST(TopkList, golden_bytes_are_read) {
  const std::vector<Entry> expected = {{3, 1.0}, {65537, -2.0}};
  EXPECT_EQ(entries_of(parsed(bytes_of(kGolden), 65538, {})), expected);
  EXPECT_EQ(entries_of(parsed(bytes_of(kGoldenFp16), 65538, {.fp16 = true})), expected);
}

TEST(TopkList, a_list_that_is_not_finite_is_a_header_and_empty_blocks) {
  HostResidual state(DataType::kFloat64, 65537);
  std::vector<double> values(65537, 1.0);
  values[9] = std::numeric_limits<double>::infinity();
  const Buffer list =
      compress(state, tensor_of(DataType::kFloat64, values), exactly(5, SimdLevel::kPlain)).list;
  EXPECT_EQ(list, bytes_of({'L', 'T', 'K', 1, 8, 1, 0, 0, 0, 0, 0, 0,
                            0,   0,   0,   0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(TopkList, sizes_follow_the_formula) {
  EXPECT_EQ(list_bytes(0, 0, {}), 16U);
  EXPECT_EQ(list_bytes(65536, 10, {}), 16U + 4 + 10 * (2 + 4));
  EXPECT_EQ(list_bytes(65537, 10, {.dtype = DataType::kFloat64}), 16U + 8 + 10 * (2 + 8));
  EXPECT_EQ(list_bytes(65537, 10, {.fp16 = true}), 16U + 8 + 4 + 10 * (2 + 2));
  EXPECT_EQ(list_bytes(65536, 10, {.dtype = DataType::kFloat16, .fp16 = true}),
            16U + 4 + 10 * (2 + 2));  // Nothing to shorten, no scales.
  EXPECT_EQ(max_list_bytes(3, 10, {}), list_bytes(3, 3, {}));
}

TEST(TopkList, a_phase_may_touch_one_block_more) {
  EXPECT_EQ(topk_blocks(0, 65535), 0U);
  EXPECT_EQ(topk_blocks(1, 65535), 1U);
  EXPECT_EQ(topk_blocks(2, 65535), 2U);
  EXPECT_EQ(topk_blocks(65536, 0), 1U);
  EXPECT_EQ(topk_blocks(65536, 1), 2U);
}

struct Damage {
  const char* what;
  std::function<void(Buffer&)> damage;
  const char* text;
};

std::function<void(Buffer&)> set(std::size_t at, unsigned value) {
  return [=](Buffer& list) { list[at] = static_cast<std::byte>(value); };
}

void expect_refused(const Buffer& list, const TopkFormat& format, const Damage& damage) {
  const auto view = parse_list(list, 65538, format);
  ASSERT_FALSE(view.ok()) << damage.what;
  EXPECT_EQ(view.status().code(), ErrorCode::kPeerFailed);
  EXPECT_NE(view.status().message().find(damage.text), std::string::npos)
      << damage.what << ": " << view.status().message();
}

TEST(TopkListParser, says_what_is_wrong_with_a_list) {
  const std::vector<Damage> damages = {
      {"empty", [](Buffer& list) { list.clear(); }, "header"},
      {"header only", [](Buffer& list) { list.resize(16); }, "bytes"},
      {"one byte less", [](Buffer& list) { list.pop_back(); }, "bytes"},
      {"one byte more", [](Buffer& list) { list.push_back({}); }, "bytes"},
      {"magic", set(0, 'l'), "does not begin"},
      {"version", set(3, 2), "does not begin"},
      {"dtype", set(4, 8), "element type 8"},
      {"unknown flag", set(5, 4), "flags 4"},
      {"scales where there are none", set(5, 2), "flags 2"},
      {"flagged, with entries", set(5, 1), "not finite"},
      {"phase", set(6, 1), "phase 1"},
      {"more entries than elements", set(13, 1), "entries for 65538"},
      {"more entries than bytes", set(8, 3), "bytes"},
      {"more in blocks than in all", set(16, 3), "blocks have more"},
      {"less in blocks than in all", set(20, 0), "blocks have 1"},
      {"a huge count in a block", set(19, 255), "blocks"},
      {"offset outside of the last block", set(26, 2), "block 1"},
  };
  for (const Damage& damage : damages) {
    Buffer list = bytes_of(kGolden);
    damage.damage(list);
    expect_refused(list, {}, damage);
  }
}

TEST(TopkListParser, refuses_values_that_are_not_finite) {
  for (const DataType dtype : kFloatTypes) {
    for (const double bad : {std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
      HostResidual state(dtype, 3);
      Buffer list =
          compress(state, tensor_of(dtype, {1, 2, 3}), exactly(3, SimdLevel::kPlain)).list;
      testing::put(dtype,
                   list.data() + list_bytes(3, 3, {.dtype = dtype}) - 3 * element_size(dtype),
                   1,
                   bad);
      const auto view = parse_list(list, 3, {.dtype = dtype});
      ASSERT_FALSE(view.ok());
      EXPECT_NE(view.status().message().find("not finite"), std::string::npos);
    }
  }
}

TEST(TopkListParser, refuses_scales_and_float16_that_could_be_infinite) {
  const std::vector<Damage> damages = {
      {"scale 2^114", [](Buffer& list) { list[24] = std::byte{114}, list[25] = {}; }, "scale"},
      {"scale 2^-126", [](Buffer& list) { list[24] = std::byte{130}; }, "scale"},
      {"2^15", [](Buffer& list) { list[33] = std::byte{0x78}; }, "float16"},
      {"a float16 NaN", [](Buffer& list) { list[35] = std::byte{0x7e}; }, "float16"},
  };
  for (const Damage& damage : damages) {
    Buffer list = bytes_of(kGoldenFp16);
    damage.damage(list);
    expect_refused(list, {.fp16 = true}, damage);
  }
}

TEST(TopkListParser, refuses_offsets_that_do_not_ascend) {
  HostResidual state(DataType::kFloat32, 3);
  const Buffer list =
      compress(state, tensor_of(DataType::kFloat32, {1, 2, 3}), exactly(3, SimdLevel::kPlain)).list;
  for (const unsigned offset : {0U, 2U}) {  // As the one before, as the one behind.
    Buffer damaged = list;
    damaged[22] = static_cast<std::byte>(offset);
    EXPECT_FALSE(parse_list(damaged, 3, {}).ok());
  }
}

TEST(TopkListParser, refuses_any_list_that_is_cut_short) {
  for (std::size_t length = 0; length < kGolden.size(); ++length) {
    Buffer list = bytes_of(kGolden);
    list.resize(length);
    EXPECT_FALSE(parse_list(list, 65538, {}).ok()) << length;
  }
}

// ---- Ranges.

/// A list of a shard, and its entries.
struct Whole {
  Buffer bytes;
  TopkListView view;
  std::vector<Entry> entries;
};

Whole random_list(DataType dtype, bool fp16, std::size_t numel, std::size_t k) {
  Rng rng(numel + k);
  HostResidual state(dtype, numel);
  TopkRequest request = exactly(k, detect_simd_level());
  request.fp16 = fp16;
  Whole whole;
  whole.bytes = compress(state, tensor_of(dtype, normal_values(rng, numel)), request).list;
  whole.view = parsed(whole.bytes, numel, {.dtype = dtype, .fp16 = fp16});
  whole.entries = entries_of(whole.view);
  return whole;
}

Buffer part_of(const TopkListView& list, std::size_t begin, std::size_t end) {
  Buffer part(list_range_bytes(list, begin, end));
  const auto written = write_list_range(list, begin, end, part);
  EXPECT_TRUE(written.ok()) << written.status().message();
  EXPECT_EQ(*written, part.size());
  return part;
}

/// Cuts `list` at `cuts`; parses the parts, which must have all entries in order.
void expect_parts(const TopkListView& list,
                  const std::vector<Entry>& entries,
                  const std::vector<std::size_t>& cuts) {
  std::vector<Entry> found;
  for (std::size_t p = 0; p + 1 < cuts.size(); ++p) {
    const std::size_t begin = cuts[p];
    const Buffer bytes = part_of(list, begin, cuts[p + 1]);
    const auto part =
        parse_list(bytes, cuts[p + 1] - begin, list.format, (list.phase + begin) % kTopkBlockElems);
    ASSERT_TRUE(part.ok()) << part.status().message();
    for (const Entry& entry : entries_of(*part)) {
      found.push_back({entry.index + begin, entry.value});
    }
  }
  ASSERT_EQ(found, entries);
}

TEST(TopkRange, parts_are_lists_that_together_have_all_entries) {
  for (const DataType dtype : kFloatTypes) {
    for (const bool fp16 : {false, true}) {
      const std::size_t numel = 3 * kTopkBlockElems + 100;
      const Whole whole = random_list(dtype, fp16, numel, 2000);
      expect_parts(whole.view, whole.entries, {0, numel});
      expect_parts(whole.view,
                   whole.entries,
                   {0, 1, 1, 65535, 65536, 65537, 100000, 2 * kTopkBlockElems, numel - 1, numel});
    }
  }
}

TEST(TopkRange, parts_of_small_lists_at_every_element) {
  const Whole whole = random_list(DataType::kFloat32, false, 40, 13);
  for (std::size_t a = 0; a <= 40; ++a) {
    for (std::size_t b = a; b <= 40; ++b) {
      expect_parts(whole.view, whole.entries, {0, a, b, 40});
    }
  }
}

TEST(TopkRange, parts_can_be_cut_again) {
  const std::size_t numel = 2 * kTopkBlockElems;
  const Whole whole = random_list(DataType::kFloat32, true, numel, 900);
  const std::size_t begin = 65000;
  const Buffer bytes = part_of(whole.view, begin, numel);
  const auto part = parse_list(bytes, numel - begin, whole.view.format, begin);
  ASSERT_TRUE(part.ok());
  expect_parts(*part, entries_of(*part), {0, 5, 536, 537, 30000, numel - begin});
}

TEST(TopkRange, of_a_list_that_is_not_finite_is_not_finite) {
  HostResidual state(DataType::kFloat32, 100);
  std::vector<double> values(100, 1.0);
  values[99] = std::numeric_limits<double>::quiet_NaN();
  const Buffer list =
      compress(state, tensor_of(DataType::kFloat32, values), exactly(5, SimdLevel::kPlain)).list;
  const auto view = parsed(list, 100, {});
  const Buffer part = part_of(view, 10, 20);
  const auto parsed_part = parse_list(part, 10, {}, 10);
  ASSERT_TRUE(parsed_part.ok()) << parsed_part.status().message();
  EXPECT_TRUE(parsed_part->non_finite);
}

TEST(TopkRange, outside_of_the_list_is_an_error) {
  const Whole whole = random_list(DataType::kFloat32, false, 40, 4);
  Buffer out(1000);
  EXPECT_FALSE(write_list_range(whole.view, 0, 41, out).ok());
  EXPECT_FALSE(write_list_range(whole.view, 5, 4, out).ok());
  Buffer small(list_range_bytes(whole.view, 0, 40) - 1);
  EXPECT_FALSE(write_list_range(whole.view, 0, 40, small).ok());
}

}  // namespace
}  // namespace lightcc::topk_list_test
