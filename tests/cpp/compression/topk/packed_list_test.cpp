// Lists whose values have 2 bits: what they stand for, and how they travel.
#include "lightcc/compression/topk/packed_list.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/half.hpp"
#include "lightcc/base/rng.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::packed_list_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kElements = 150'000;
constexpr TopkFormat kFormat{.two_bits = true};

TopkRequest two_bits(std::size_t k) {
  TopkRequest request = exactly(k, detect_simd_level());
  request.two_bits = true;
  return request;
}

Buffer packed(const TopkListView& list, std::size_t begin, std::size_t end) {
  Buffer out(packed_range_bytes(list, begin, end));
  pack_range(list, begin, end, out.data());
  return out;
}

Buffer unpacked(const Buffer& from,
                std::size_t elements,
                const TopkFormat& format,
                std::size_t phase) {
  const auto bytes = unpacked_bytes(from, elements, format, phase);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  Buffer out(bytes.ok() ? *bytes : 0);
  unpack_list(from, elements, format, phase, out);
  return out;
}

TEST(PackedList, values_are_means_of_two_classes_and_the_rest_stays) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kBfloat16}) {
    Rng rng(7);
    const Buffer tensor = tensor_of(dtype, normal_values(rng, kElements));
    HostResidual state(dtype, kElements);
    const Buffer list = compress(state, tensor, two_bits(6000)).list;
    state.commit();
    std::map<std::size_t, std::vector<double>> given;
    std::map<std::size_t, std::set<double>> magnitudes;
    for (const Entry& entry : entries_of(parsed(list, kElements, {.dtype = dtype}))) {
      const double value = testing::get(dtype, tensor.data(), entry.index);
      EXPECT_EQ(std::signbit(value), std::signbit(entry.value));
      EXPECT_EQ(
          static_cast<float>(entry.value) + static_cast<float>(state.residual_at(entry.index)),
          static_cast<float>(value));
      given[entry.index / kTopkChunkElems].push_back(std::abs(value));
      magnitudes[entry.index / kTopkChunkElems].insert(std::abs(entry.value));
    }
    EXPECT_EQ(given.size(), (kElements - 1) / kTopkChunkElems + 1);
    for (const auto& [chunk, values] : given) {
      double mean = 0.0;
      for (const double value : values) {
        mean += value / static_cast<double>(values.size());
      }
      std::array<double, 2> sums{};
      std::array<double, 2> counts{};
      for (const double value : values) {
        sums.at(value > mean) += value;
        counts.at(value > mean) += 1.0;
      }
      std::set<double> expected;
      for (std::size_t at = 0; at < 2; ++at) {
        if (counts.at(at) > 0.0) {
          const auto level = static_cast<float>(sums.at(at) / counts.at(at));
          expected.insert(bfloat16_to_float(float_to_bfloat16(level)));
        }
      }
      EXPECT_EQ(magnitudes[chunk], expected) << chunk;
    }
  }
}

TEST(PackedList, every_range_comes_back_as_it_was) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kBfloat16}) {
    const TopkFormat format{.dtype = dtype, .two_bits = true};
    Rng rng(3);
    HostResidual state(dtype, kElements);
    const Buffer tensor = tensor_of(dtype, normal_values(rng, kElements));
    const Buffer list = compress(state, tensor, two_bits(5001)).list;
    const TopkListView view = parsed(list, kElements, format);
    const std::vector<std::pair<std::size_t, std::size_t>> ranges = {{0, kElements},
                                                                     {0, 0},
                                                                     {0, 1},
                                                                     {4095, 4097},
                                                                     {65'535, 65'537},
                                                                     {65'536, 131'072},
                                                                     {100, 140'000},
                                                                     {kElements - 1, kElements}};
    for (const auto& [begin, end] : ranges) {
      const std::size_t phase = begin % kTopkBlockElems;
      const Buffer travels = packed(view, begin, end);
      Buffer expected(list_range_bytes(view, begin, end));
      ASSERT_TRUE(write_list_range(view, begin, end, expected).ok());
      EXPECT_EQ(unpacked(travels, end - begin, format, phase), expected) << begin << " " << end;
      EXPECT_LE(travels.size(), max_packed_bytes(end - begin, end - begin, phase));
    }
    const double bytes = static_cast<double>(packed(view, 0, kElements).size());
    EXPECT_LT(bytes, 16 + 1.75 * 5001 + 8.0 * (kElements / kTopkChunkElems + 1));
  }
}

/// Two elements of a tensor of 4098: 1.0 at 3, -2.0 at 4097.
const std::vector<unsigned> kGolden = {
    'L',  'T',  'P',  1,    7,    0,    0, 0,  // magic and version, float32, flags, phase
    2,    0,    0,    0,    0,    0,    0, 0,  // entries
    1,    0,                                   // of the first chunk
    0x80, 0x3f, 0x80, 0x3f,                    // its magnitudes
    1,    0,    0x00, 0x40, 0x00, 0x40,        // the second chunk's
    3,    0,    1,                             // offset, code: the larger magnitude
    1,    0,    3,                             // and below zero
};

TEST(PackedList, golden_bytes_are_written_and_read) {
  HostResidual state(DataType::kFloat32, 4098);
  std::vector<double> values(4098, 0.0);
  values[3] = 1.0;
  values[4097] = -2.0;
  const Buffer list = compress(state, tensor_of(DataType::kFloat32, values), two_bits(2)).list;
  EXPECT_EQ(packed(parsed(list, 4098, kFormat), 0, 4098), bytes_of(kGolden));
  EXPECT_EQ(unpacked(bytes_of(kGolden), 4098, kFormat, 0), list);
}

TEST(PackedList, says_what_is_wrong_with_a_list) {
  const std::vector<std::pair<std::size_t, unsigned>> damages = {
      {0, 'l'}, {3, 2}, {4, 8}, {5, 1}, {6, 1}, {8, 3}, {16, 2}, {17, 255}, {22, 0}};
  for (const auto& [at, value] : damages) {
    Buffer list = bytes_of(kGolden);
    list[at] = static_cast<std::byte>(value);
    const auto bytes = unpacked_bytes(list, 4098, kFormat);
    ASSERT_FALSE(bytes.ok()) << at;
    EXPECT_EQ(bytes.status().code(), ErrorCode::kPeerFailed);
  }
  for (const std::size_t size : {0U, 15U, 27U, 33U, 35U}) {
    Buffer list = bytes_of(kGolden);
    list.resize(size);
    EXPECT_FALSE(unpacked_bytes(list, 4098, kFormat).ok()) << size;
  }
  // What the parser of lists finds: an offset behind the end, and a magnitude that is not finite.
  for (const auto& [at, value] :
       std::vector<std::pair<std::size_t, unsigned>>{{31, 2}, {27, 0x7f}}) {
    Buffer list = bytes_of(kGolden);
    list[26] = static_cast<std::byte>(0x80);  // With the other half, a magnitude is infinite.
    list[at] = static_cast<std::byte>(value);
    EXPECT_FALSE(parse_list(unpacked(list, 4098, kFormat, 0), 4098, kFormat).ok()) << at;
  }
}

}  // namespace
}  // namespace lightcc::packed_list_test
