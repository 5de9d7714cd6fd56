// SHA-256 against NIST's examples and the block boundaries, HMAC against RFC 4231.
#include "lightcc/base/sha256.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/bytes.hpp"

namespace lightcc::sha256_test {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

/// Bytes that look random.
std::vector<std::byte> bytes_of(std::size_t count) {
  std::vector<std::byte> bytes(count);
  std::uint32_t value = 1;
  for (std::byte& byte : bytes) {
    value = value * 1664525 + 1013904223;
    byte = static_cast<std::byte>(value >> 24);
  }
  return bytes;
}

std::string hmac(std::string_view key, std::string_view data) {
  HmacSha256 mac(as_bytes(key));
  mac.update(as_bytes(data));
  return hex(mac.finish());
}

TEST(Sha256Test, instructions_of_the_cpu_agree_with_plain_code) {
  const Sha256Compress fast = sha256_compress_x86();
  if (fast == nullptr) {
    GTEST_SKIP() << "this CPU has no instructions for SHA-256";
  }
  const std::vector<std::byte> bytes = bytes_of(1 + 37 * kSha256BlockBytes);
  for (const std::size_t count : {0U, 1U, 2U, 37U}) {
    for (const std::size_t offset : {0U, 1U}) {
      Sha256State found{1, 2, 3, 4, 5, 6, 7, 0xffffffff};
      Sha256State expected = found;
      fast(found, bytes.data() + offset, count);
      sha256_compress_plain(expected, bytes.data() + offset, count);
      EXPECT_EQ(found, expected) << count << " blocks";
    }
  }
}

TEST(Sha256Test, parts_give_what_the_whole_gives) {
  const std::vector<std::byte> bytes = bytes_of(1000);
  for (const std::size_t first : {0U, 1U, 63U, 64U, 65U, 200U}) {
    for (const std::size_t second : {0U, 1U, 63U, 64U, 127U, 500U}) {
      Sha256 parts;
      parts.update(std::span(bytes).first(first));
      parts.update(std::span(bytes).subspan(first, second));
      parts.update(std::span(bytes).subspan(first + second));
      EXPECT_EQ(parts.finish(), sha256(bytes)) << first << ", " << second;
    }
  }
}

TEST(Sha256Test, agrees_with_the_nist_examples) {
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(as_bytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256(as_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(as_bytes("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                                "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"))),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}

TEST(Sha256Test, hashes_a_million_bytes_fed_in_odd_pieces) {
  Sha256 hash;
  const std::string piece(997, 'a');
  std::size_t left = 1'000'000;
  while (left > 0) {
    const std::size_t count = std::min(left, piece.size());
    hash.update(as_bytes(std::string_view(piece).substr(0, count)));
    left -= count;
  }
  EXPECT_EQ(hex(hash.finish()), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, pads_right_around_the_end_of_a_block) {
  const std::vector<std::pair<std::size_t, std::string>> cases = {
      {55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
      {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
      {63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
      {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
      {65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
      {119, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"},
      {120, "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c"},
      {128, "6836cf13bac400e9105071cd6af47084dfacad4e5e302c94bfed24e013afb73e"}};
  for (const auto& [length, digest] : cases) {
    EXPECT_EQ(hex(sha256(as_bytes(std::string(length, 'a')))), digest) << length;
  }
}

TEST(HmacSha256Test, agrees_with_rfc_4231) {
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting;
  for (char c = 1; c <= 25; ++c) {
    counting += c;
  }
  EXPECT_EQ(hmac(counting, std::string(50, '\xcd')),
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  EXPECT_EQ(hmac(std::string(20, '\x0c'), "Test With Truncation").substr(0, 32),
            "a3b6167473100ee06e0c796c2955552b");
  const std::string long_key(131, '\xaa');
  EXPECT_EQ(hmac(long_key, "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(hmac(long_key,
                 "This is a test using a larger than block-size key and a larger than block-size "
                 "data. The key needs to be hashed before being used by the HMAC algorithm."),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(EqualConstantTimeTest, sees_every_single_difference) {
  const Sha256Digest digest = sha256(as_bytes("x"));
  EXPECT_TRUE(equal_constant_time(digest, digest));
  for (std::size_t i = 0; i < digest.size(); ++i) {
    Sha256Digest other = digest;
    other[i] ^= std::byte{0x01};
    EXPECT_FALSE(equal_constant_time(digest, other)) << i;
  }
  EXPECT_FALSE(equal_constant_time(digest, std::span(digest).first(31)));
  EXPECT_TRUE(equal_constant_time({}, {}));
}

}  // namespace
}  // namespace lightcc::sha256_test
