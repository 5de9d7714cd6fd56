#include "protocol/handshake.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace harp::handshake_test {
namespace {

Offer sample_offer() {
  return {.cid = 9,
          .initial_psn = 0xffffff00,
          .initial_msg = 5,
          .window_packets = 4096,
          .pss = 1408,
          .paths = 8,
          .eager_packets = 186};
}

std::vector<std::byte> encoded(const Syn& syn) {
  std::vector<std::byte> bytes(kSynBytes);
  EXPECT_EQ(encode_syn(syn, bytes), kSynBytes);
  return bytes;
}

TEST(Handshake, a_syn_is_parsed_as_it_was_encoded) {
  Syn sent{.listen_id = 0x0102030405060708, .offer = sample_offer()};
  sent.nonce[3] = std::byte{7};
  const auto got = parse_syn(encoded(sent));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->listen_id, sent.listen_id);
  EXPECT_EQ(got->nonce, sent.nonce);
  EXPECT_EQ(got->offer, sent.offer);
}

TEST(Handshake, a_synack_is_parsed_as_it_was_encoded) {
  SynAck sent{.offer = sample_offer(), .echo = {.tx_time = 3, .delay = 4}};
  sent.nonce[15] = std::byte{1};
  std::array<std::byte, kSynAckBytes> bytes{};
  EXPECT_EQ(encode_syn_ack(sent, bytes), bytes.size());
  const auto got = parse_syn_ack(bytes);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->nonce, sent.nonce);
  EXPECT_EQ(got->offer, sent.offer);
  EXPECT_EQ(got->echo.tx_time, 3U);
  EXPECT_EQ(got->echo.delay, 4U);
  EXPECT_FALSE(parse_syn_ack(std::span(bytes).first(bytes.size() - 1)));
}

TEST(Handshake, offers_that_no_honest_end_makes_are_refused) {
  const auto refused = [](auto change) {
    Syn syn{.offer = sample_offer()};
    change(syn.offer);
    return !parse_syn(encoded(syn));
  };
  EXPECT_FALSE(refused([](Offer&) {}));
  EXPECT_TRUE(refused([](Offer& offer) { offer.cid = 0; }));
  EXPECT_TRUE(refused([](Offer& offer) { offer.pss = 0; }));
  EXPECT_TRUE(refused([](Offer& offer) { offer.pss = 1400; }));
  EXPECT_TRUE(refused([](Offer& offer) { offer.paths = 0; }));
  EXPECT_TRUE(refused([](Offer& offer) { offer.paths = kMaxPaths + 1; }));
  EXPECT_TRUE(refused([](Offer& offer) { offer.window_packets = 0; }));
  EXPECT_TRUE(refused([](Offer& offer) { offer.window_packets = 100; }));
  EXPECT_TRUE(refused([](Offer& offer) { offer.window_packets = 2 * kMaxWindowPackets; }));
  EXPECT_TRUE(refused([](Offer& offer) { offer.eager_packets = 0; }));
  EXPECT_TRUE(refused([](Offer& offer) { offer.eager_packets = 1U << 20; }));
}

TEST(Handshake, every_other_length_of_a_syn_is_refused) {
  auto bytes = encoded({.offer = sample_offer()});
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(parse_syn(std::span(bytes).first(length))) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(parse_syn(bytes));
}

TEST(Handshake, a_reset_names_a_known_reason) {
  std::array<std::byte, kResetBytes> bytes{};
  for (unsigned reason = 0; reason < 12; ++reason) {
    EXPECT_EQ(encode_reset(static_cast<SessionError>(reason), bytes), bytes.size());
    const auto got = parse_reset(bytes);
    EXPECT_EQ(got.has_value(), reason >= 1 && reason <= 7) << reason;
    if (got) {
      EXPECT_EQ(static_cast<unsigned>(*got), reason);
    }
  }
}

TEST(Handshake, pss_fits_the_mtu_with_all_headers) {
  EXPECT_EQ(pss_for_mtu(1500), 1408);
  EXPECT_EQ(pss_for_mtu(3498), 3392);
  EXPECT_EQ(pss_for_mtu(8500), 8384);
  EXPECT_EQ(pss_for_mtu(9001), 8896);
  EXPECT_EQ(pss_for_mtu(100), 0);
  EXPECT_EQ(pss_for_mtu(1 << 20), kMaxPss);
}

TEST(Handshake, the_ladder_goes_down_and_ends) {
  EXPECT_EQ(pss_ladder_next(kMaxPss), 8896);
  EXPECT_EQ(pss_ladder_next(8896), 8384);
  EXPECT_EQ(pss_ladder_next(3392), 1408);
  EXPECT_EQ(pss_ladder_next(1152), 1152);
  EXPECT_EQ(pss_ladder_next(64), 64);
}

}  // namespace
}  // namespace harp::handshake_test
