#include "protocol/ack_body.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace harp::ack_body_test {
namespace {

AckBody sample() {
  AckBody ack;
  ack.cum_psn = 0xfffffffe;
  ack.msg_limit = 7;
  ack.spurious = 9;
  ack.echo_path = 5;
  ack.echo_tx_time = 0x01020304;
  ack.echo_delay = 0x05060708;
  ack.path_count = 2;
  ack.paths[0] = {.path = 5, .newest = 0xffffffff};
  ack.paths[1] = {.path = 1, .newest = 4, .is_astray = true};
  ack.sack_words = 2;
  ack.sack[0] = 0xf0;
  ack.sack[1] = 0x8000000000000001;
  return ack;
}

std::vector<std::byte> encoded(const AckBody& ack) {
  std::vector<std::byte> bytes(kMaxAckBytes);
  bytes.resize(encode_ack(ack, bytes));
  return bytes;
}

TEST(AckBody, has_the_length_that_its_counts_give) {
  EXPECT_EQ(encoded(AckBody{}).size(), kAckFixedBytes);
  EXPECT_EQ(encoded(sample()).size(), kAckFixedBytes + 2 * kAckPathBytes + 16);
}

TEST(AckBody, bytes_are_those_of_the_table) {
  const auto bytes = encoded(sample());
  const std::array<unsigned, 36> golden{0xfe, 0xff, 0xff, 0xff, 7,    0,    0, 0,    9, 0, 0, 0,
                                        5,    0,    2,    2,    4,    3,    2, 1,    8, 7, 6, 5,
                                        5,    0,    0xff, 0xff, 0xff, 0xff, 1, 0x80, 4, 0, 0, 0};
  for (std::size_t i = 0; i < golden.size(); ++i) {
    EXPECT_EQ(static_cast<unsigned>(bytes[i]), golden[i]) << "offset " << i;
  }
}

TEST(AckBody, what_was_encoded_is_parsed) {
  const AckBody sent = sample();
  const auto got = parse_ack(encoded(sent));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->cum_psn, sent.cum_psn);
  EXPECT_EQ(got->msg_limit, sent.msg_limit);
  EXPECT_EQ(got->spurious, sent.spurious);
  EXPECT_EQ(got->echo_path, sent.echo_path);
  EXPECT_EQ(got->echo_tx_time, sent.echo_tx_time);
  EXPECT_EQ(got->echo_delay, sent.echo_delay);
  EXPECT_EQ(got->path_count, sent.path_count);
  EXPECT_EQ(got->paths, sent.paths);
  EXPECT_EQ(got->sack_words, sent.sack_words);
  EXPECT_EQ(got->sack, sent.sack);
}

TEST(AckBody, every_other_length_is_refused) {
  auto bytes = encoded(sample());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(parse_ack(std::span(bytes).first(length))) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(parse_ack(bytes));
}

TEST(AckBody, counts_and_paths_beyond_the_limits_are_refused) {
  const auto accepted = [](std::size_t paths, std::size_t words) {
    std::vector<std::byte> bytes(kAckFixedBytes + paths * kAckPathBytes + words * 8);
    bytes[14] = static_cast<std::byte>(paths);
    bytes[15] = static_cast<std::byte>(words);
    return parse_ack(bytes).has_value();
  };
  EXPECT_TRUE(accepted(kMaxAckPaths, kMaxSackWords));
  EXPECT_FALSE(accepted(kMaxAckPaths + 1, kMaxSackWords));
  EXPECT_FALSE(accepted(kMaxAckPaths, kMaxSackWords + 1));
  auto bytes = encoded(sample());
  bytes[kAckFixedBytes] = static_cast<std::byte>(kMaxPaths);
  EXPECT_FALSE(parse_ack(bytes));
  bytes = encoded(sample());
  bytes[12] = static_cast<std::byte>(kMaxPaths);
  EXPECT_FALSE(parse_ack(bytes));
}

}  // namespace
}  // namespace harp::ack_body_test
