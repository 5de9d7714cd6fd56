#include "lightcc/base/bytes.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"

namespace lightcc::bytes_test {
namespace {

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) {
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

Bytes varint_of(std::uint64_t value) {
  Bytes bytes;
  ByteWriter(bytes).varint(value);
  return bytes;
}

TEST(Bytes, numbers_are_little_endian) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.number(std::uint32_t{0x01020304});
  writer.number(std::int16_t{-2});
  EXPECT_EQ(bytes, bytes_of({4, 3, 2, 1, 0xfe, 0xff}));
}

TEST(Bytes, varints_have_their_golden_bytes) {
  EXPECT_EQ(varint_of(0), bytes_of({0}));
  EXPECT_EQ(varint_of(127), bytes_of({0x7f}));
  EXPECT_EQ(varint_of(128), bytes_of({0x80, 0x01}));
  EXPECT_EQ(varint_of(300), bytes_of({0xac, 0x02}));
  EXPECT_EQ(varint_of(std::numeric_limits<std::uint64_t>::max()),
            bytes_of({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}));
}

TEST(Bytes, everything_written_is_read_back) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.number(std::uint8_t{7});
  writer.number(-1.5);
  writer.varint(1234567);
  writer.string("name");
  writer.blob({});
  writer.raw(as_bytes("tail"));
  ByteReader reader(bytes);
  EXPECT_EQ(reader.number<std::uint8_t>(), 7);
  EXPECT_EQ(reader.number<double>(), -1.5);
  EXPECT_EQ(reader.varint(), 1234567U);
  EXPECT_EQ(reader.string(4), "name");
  EXPECT_TRUE(reader.blob(100).empty());
  EXPECT_EQ(reader.remaining(), 4U);
  EXPECT_FALSE(reader.finished());
  EXPECT_EQ(reader.raw(4).size(), 4U);
  EXPECT_TRUE(reader.finished());
}

TEST(Bytes, varints_of_every_length_survive_the_round_trip) {
  Rng rng(11);
  for (unsigned bits = 0; bits < 64; ++bits) {
    for (int i = 0; i < 20; ++i) {
      const std::uint64_t value = rng() >> bits;
      const Bytes bytes = varint_of(value);
      ByteReader reader(bytes);
      EXPECT_EQ(reader.varint(), value);
      EXPECT_TRUE(reader.finished());
    }
  }
}

TEST(Bytes, reading_past_the_end_fails_and_stays_failed) {
  const Bytes bytes = bytes_of({1, 2, 3});
  ByteReader reader(bytes);
  EXPECT_EQ(reader.number<std::uint32_t>(), 0U);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.number<std::uint8_t>(), 0U);  // There are bytes, but the reader has failed.
  EXPECT_EQ(reader.remaining(), 0U);
  EXPECT_FALSE(reader.finished());
}

TEST(Bytes, every_truncation_of_a_message_is_noticed) {
  Bytes whole;
  ByteWriter writer(whole);
  writer.varint(1 << 20);
  writer.string("tensor");
  writer.number(std::uint64_t{42});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    ByteReader reader(std::span<const std::byte>(whole).first(length));
    reader.varint();
    reader.string(64);
    reader.number<std::uint64_t>();
    EXPECT_FALSE(reader.ok()) << length;
  }
}

TEST(Bytes, a_varint_of_more_than_64_bits_is_refused) {
  for (const int last : {0x02, 0x7f, 0x81}) {
    const Bytes bytes = bytes_of({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, last, 0});
    ByteReader reader(bytes);
    EXPECT_EQ(reader.varint(), 0U);
    EXPECT_FALSE(reader.ok());
  }
}

TEST(Bytes, a_blob_longer_than_allowed_or_than_its_input_is_refused) {
  Bytes bytes;
  ByteWriter(bytes).string("12345");
  EXPECT_EQ(ByteReader(bytes).string(5), "12345");
  EXPECT_EQ(ByteReader(bytes).string(4), "");
  const Bytes lying = varint_of(std::numeric_limits<std::uint64_t>::max());
  ByteReader reader(lying);
  EXPECT_TRUE(reader.blob(std::numeric_limits<std::size_t>::max()).empty());
  EXPECT_FALSE(reader.ok());
}

}  // namespace
}  // namespace lightcc::bytes_test
