#include "protocol/handshake_machine.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/pipe.hpp"

namespace harp::handshake_machine_test {
namespace {

using Verdict = HandshakeMachine::Verdict;

constexpr std::uint32_t kSynTime = 9;
const Nonce kNonce{std::byte{1}};
const Nonce kServerNonce{std::byte{2}};

PacketBytes sealed(const ControlPacket& packet, const Key& key) {
  PacketBytes bytes(kHeaderBytes);
  const Header header{.type = packet.type,
                      .path = packet.path,
                      .len = static_cast<std::uint16_t>(packet.body_bytes),
                      .tx_time = 5};
  seal_packet(key, header, packet.body(), bytes);
  bytes.insert(bytes.end(), packet.body().begin(), packet.body().end());
  return bytes;
}

HandshakeMachine make_client(const Secret& secret = kSecret, const Nonce& nonce = kNonce) {
  return {secret, nonce, kListenId, at_ms(0)};
}

struct Ends {
  Offer offer{.cid = 9, .window_packets = 64, .pss = 8896, .paths = 2, .eager_packets = 16};
  HandshakeMachine client = make_client();
  PacketBytes syn = sealed(client.next_try(offer, at_ms(0)), client.try_key());
  HandshakeMachine server{
      kSecret, kServerNonce, parse_syn(parse_packet(syn)->body).value(), kSynTime, at_ms(1)};
  PacketBytes syn_ack = sealed(server.next_try(offer, at_ms(3)), server.try_key());
  SynAck got;

  Verdict answer(const PacketBytes& packet) {
    return client.on_syn_ack(*parse_packet(packet), at_ms(4), got);
  }
};

TEST(HandshakeMachine, both_ends_have_the_same_keys) {
  Ends ends;
  EXPECT_TRUE(ends.server.has_keys());
  EXPECT_FALSE(ends.client.has_keys());
  EXPECT_FALSE(ends.client.conf_is_due());
  EXPECT_EQ(ends.answer(ends.syn_ack), Verdict::kNew);
  EXPECT_TRUE(ends.client.has_keys());
  EXPECT_EQ(ends.got.offer, ends.offer);
  EXPECT_EQ(ends.got.echo.tx_time, kSynTime);
  EXPECT_EQ(from_wire_duration(ends.got.echo.delay).count(), 1'999'872) << "2 ms, in wire units";
  EXPECT_EQ(ends.client.tx_key(), ends.server.rx_key());
  EXPECT_EQ(ends.client.rx_key(), ends.server.tx_key());
  EXPECT_NE(ends.client.rx_key(), ends.client.tx_key());
}

TEST(HandshakeMachine, every_genuine_synack_brings_a_conf) {
  Ends ends;
  ControlPacket packet;
  for (const Verdict verdict : {Verdict::kNew, Verdict::kRepeated}) {
    EXPECT_EQ(ends.answer(ends.syn_ack), verdict);
    ASSERT_TRUE(ends.client.take_conf(1408, 2, at_ms(4), packet));
    EXPECT_EQ(packet.type, PacketType::kConf);
    const auto conf = parse_conf(packet.body());
    ASSERT_TRUE(conf);
    EXPECT_EQ(conf->pss, 1408);
    EXPECT_EQ(conf->echo.tx_time, 5U);
    EXPECT_FALSE(ends.client.take_conf(1408, 2, at_ms(4), packet));
  }
}

TEST(HandshakeMachine, what_is_not_genuine_changes_nothing) {
  Ends ends;
  PacketBytes forged = ends.syn_ack;
  forged.back() ^= std::byte{1};
  EXPECT_EQ(ends.answer(forged), Verdict::kForged);
  EXPECT_EQ(ends.answer(ends.syn), Verdict::kMalformed);
  EXPECT_FALSE(ends.client.conf_is_due());
  EXPECT_EQ(ends.server.on_syn_ack(*parse_packet(ends.syn_ack), at_ms(4), ends.got),
            Verdict::kMalformed);
  const Time before = ends.server.next_try_at();
  for (HandshakeMachine stranger : {make_client(Secret{}), make_client(kSecret, kServerNonce)}) {
    const PacketBytes syn = sealed(stranger.next_try(ends.offer, at_ms(0)), stranger.try_key());
    EXPECT_FALSE(ends.server.on_syn(*parse_packet(syn), at_ms(5), at_ms(5)));
  }
  EXPECT_EQ(ends.server.next_try_at(), before);
  EXPECT_TRUE(ends.server.on_syn(*parse_packet(ends.syn), at_ms(5), at_ms(6)));
  EXPECT_EQ(ends.server.next_try_at(), at_ms(6)) << "it is answered at once";
}

TEST(HandshakeMachine, tries_become_rare_and_smaller_on_all_paths) {
  Ends ends;
  Time now = ends.client.next_try_at();
  EXPECT_EQ(now, at_ms(20));
  std::vector<std::uint16_t> sizes;
  for (PathIndex number = 1; number < 9; ++number) {
    EXPECT_EQ(ends.client.next_try(ends.offer, now).path, number % 2);
    sizes.push_back(ends.offer.pss);
    now = ends.client.next_try_at();
  }
  EXPECT_EQ(sizes, (std::vector<std::uint16_t>{8896, 8384, 8384, 3392, 3392, 1408, 1408, 1152}));
  EXPECT_EQ(now, at_ms(20 + 40 + 80 + 160 + 320 + 640 + 1000 + 1000 + 1000));
}

}  // namespace
}  // namespace harp::handshake_machine_test
