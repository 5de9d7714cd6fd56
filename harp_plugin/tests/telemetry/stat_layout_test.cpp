// The byte table of docs/harp/stat.md, byte by byte.
#include "telemetry/stat_layout.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace harp::stat_layout_test {
namespace {

constexpr std::array kEngine{
    StatField{StatKind::kLabel, 2, "device", "", "Its name"},
    StatField{StatKind::kCounter, 0, "turns", "turns", "Turns so far"},
};
constexpr std::array kSession{StatField{StatKind::kInfo, 1, "state", "", ""}};
constexpr std::array kPath{
    StatField{StatKind::kGauge, 0, "rtt_ns", "ns", ""},
    StatField{StatKind::kGauge, 0, "in_flight", "packets", ""},
};

StatLayout layout() {
  return {.engine = kEngine,
          .session = kSession,
          .path = kPath,
          .max_sessions = 5,
          .max_paths = 3,
          .blocks = 2};
}

template <typename T>
T number_at(std::span<const std::byte> bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.subspan(at).data(), sizeof(value));
  return value;
}

std::string text_at(std::span<const std::byte> bytes, std::size_t at, std::size_t count) {
  std::string text;
  for (const std::byte one : bytes.subspan(at, count)) {
    text += static_cast<char>(one);
  }
  return text.substr(0, text.find('\0'));
}

TEST(StatLayout, sizes_follow_from_the_tables) {
  EXPECT_EQ(stat_words(kEngine), 3U);
  EXPECT_EQ(layout().session_words(), 2U + 1 + 3 * 2);
  EXPECT_EQ(layout().value_words(), 3U + 3 + 5 * 9);
  EXPECT_EQ(layout().first_block(), 4096U);
  EXPECT_EQ(layout().block_bytes(), 4096U) << "1 + 51 words, as whole pages";
  EXPECT_EQ(layout().file_bytes(), 3U * 4096);
}

TEST(StatLayout, the_head_is_as_the_byte_table_says) {
  const auto bytes = encode_stat_head(layout(), 0x01020304, 0x2122232425262728);
  ASSERT_EQ(bytes.size(), 4096U);
  EXPECT_EQ(text_at(bytes, 0, 8), "HARPSTAT");
  EXPECT_EQ(number_at<std::uint32_t>(bytes, 8), 1U);
  EXPECT_EQ(number_at<std::uint32_t>(bytes, 12), 128U);
  EXPECT_EQ(number_at<std::uint32_t>(bytes, 16), 0x01020304U);
  for (std::size_t at = 20; at < 56; at += 4) {
    EXPECT_EQ(number_at<std::uint32_t>(bytes, at), 0U);
  }
  EXPECT_EQ(number_at<std::uint64_t>(bytes, 56), 0x2122232425262728U);
  const std::array<std::uint32_t, 10> sizes{2, 1, 2, 128, 3, 1, 2, 5, 3, 2};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(number_at<std::uint32_t>(bytes, 64 + 4 * i), sizes[i]) << i;
  }
  EXPECT_EQ(number_at<std::uint64_t>(bytes, 104), 4096U);
  EXPECT_EQ(number_at<std::uint64_t>(bytes, 112), 4096U);
  EXPECT_EQ(number_at<std::uint64_t>(bytes, 120), 0U);
}

TEST(StatLayout, the_tables_are_as_the_byte_table_says) {
  const auto bytes = encode_stat_head(layout(), 1, 0);
  const std::array<std::array<std::uint8_t, 3>, 5> heads{
      {{3, 2, 2}, {1, 1, 1}, {4, 2, 1}, {2, 1, 1}, {2, 1, 1}}};
  for (std::size_t i = 0; i < heads.size(); ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      EXPECT_EQ(number_at<std::uint8_t>(bytes, 128 + 128 * i + j), heads[i][j]) << i << " " << j;
    }
    EXPECT_EQ(number_at<std::uint8_t>(bytes, 128 + 128 * i + 3), 0U);
    EXPECT_EQ(number_at<std::uint32_t>(bytes, 128 + 128 * i + 4), 0U);
  }
  EXPECT_EQ(text_at(bytes, 256 + 8, 32), "turns");
  EXPECT_EQ(text_at(bytes, 256 + 40, 16), "turns");
  EXPECT_EQ(text_at(bytes, 256 + 56, 72), "Turns so far");
  EXPECT_EQ(text_at(bytes, 128 + 4 * 128 + 8, 32), "in_flight");
  EXPECT_EQ(text_at(bytes, 128 + 5 * 128, 128), "") << "behind the last";
}

TEST(StatLayout, texts_that_are_too_long_are_cut) {
  constexpr StatField kLong{
      StatKind::kInfo, 1, "a_name_that_is_longer_than_thirty_two_bytes", "", ""};
  static_assert(!kLong.fits());
  const std::array table{kLong};
  StatLayout one = layout();
  one.engine = table;
  EXPECT_EQ(text_at(encode_stat_head(one, 1, 0), 128 + 8, 32), "a_name_that_is_longer_than_thirt");
}

TEST(StatWriter, puts_numbers_and_texts_side_by_side) {
  std::array<std::uint64_t, 8> words{};
  words.fill(1);
  StatWriter out(words);
  out.number(42);
  out.text("abcdefghij", 2);
  out.text("", 1);
  out.text("longer than a word", 1);
  EXPECT_EQ(out.written(), 5U);
  const auto bytes = std::as_bytes(std::span(words));
  EXPECT_EQ(words[0], 42U);
  EXPECT_EQ(text_at(bytes, 8, 16), "abcdefghij");
  EXPECT_EQ(words[3], 0U);
  EXPECT_EQ(text_at(bytes, 32, 8), "longer t");
  out.skip_to(7);
  out.number(9);
  out.number(10);  // No room: nothing.
  EXPECT_EQ(out.written(), 8U);
  EXPECT_EQ(words[5], 1U);
  EXPECT_EQ(words[7], 9U);
}

}  // namespace
}  // namespace harp::stat_layout_test
