#include "protocol/auth.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/packet.hpp"

namespace harp::auth_test {
namespace {

Key key_of(unsigned seed) {
  Key key{};
  for (std::size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<std::byte>(seed + 17 * i);
  }
  return key;
}

std::vector<std::byte> sealed(PacketType type, std::uint8_t flags, std::size_t body_bytes) {
  std::vector<std::byte> packet(kHeaderBytes + body_bytes, std::byte{0x5a});
  const Header header{
      .type = type, .flags = flags, .psn = 77, .len = static_cast<std::uint16_t>(body_bytes)};
  seal_packet(key_of(1), header, std::span(packet).subspan(kHeaderBytes), packet);
  return packet;
}

bool accepted(const Key& key, std::span<const std::byte> packet) {
  const auto view = parse_packet(packet);
  return view && is_authentic(key, *view);
}

TEST(Auth, a_sealed_packet_is_authentic_under_its_key_only) {
  const auto packet = sealed(PacketType::kData, flag::kCrc, 100);
  EXPECT_TRUE(accepted(key_of(1), packet));
  EXPECT_FALSE(accepted(key_of(2), packet));
}

TEST(Auth, no_flipped_bit_of_a_data_packet_with_crc_is_accepted) {
  const auto packet = sealed(PacketType::kData, flag::kCrc, 64);
  for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) {
    auto changed = packet;
    changed[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(accepted(key_of(1), changed)) << "bit " << bit;
  }
}

TEST(Auth, no_flipped_bit_of_a_control_packet_is_accepted) {
  const auto packet = sealed(PacketType::kAck, 0, 48);
  for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) {
    auto changed = packet;
    changed[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(accepted(key_of(1), changed)) << "bit " << bit;
  }
}

TEST(Auth, without_crc_only_the_header_is_covered) {
  auto packet = sealed(PacketType::kData, 0, 64);
  packet.back() ^= std::byte{1};
  EXPECT_TRUE(accepted(key_of(1), packet));
  packet[8] ^= std::byte{1};
  EXPECT_FALSE(accepted(key_of(1), packet));
}

TEST(Auth, keys_differ_by_secret_nonce_and_direction) {
  std::set<Key> keys;
  const auto add = [&keys](const Key& key) { EXPECT_TRUE(keys.insert(key).second); };
  add(syn_key(key_of(1)));
  add(syn_key(key_of(2)));
  for (const unsigned secret : {1U, 2U}) {
    for (const unsigned client : {3U, 4U}) {
      for (const unsigned server : {3U, 4U}) {
        const SessionKeys derived =
            derive_session_keys(key_of(secret), key_of(client), key_of(server));
        add(derived.client_to_server);
        add(derived.server_to_client);
      }
    }
  }
}

}  // namespace
}  // namespace harp::auth_test
