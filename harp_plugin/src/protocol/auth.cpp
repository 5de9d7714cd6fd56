#include "protocol/auth.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.hpp"
#include "base/crc32c.hpp"
#include "base/siphash.hpp"
#include "protocol/packet.hpp"

namespace harp {
namespace {

/// Eight bytes of output block `index` of the key derivation: SipHash over label, index and nonces.
std::uint64_t derive_word(const Secret& secret,
                          std::uint64_t index,
                          const Nonce& client,
                          const Nonce& server) {
  constexpr std::uint64_t kLabel = 0x7079656b70726100;  // Keeps this use of the secret apart.
  std::array<std::byte, 40> input{};
  ByteWriter writer(input);
  writer.number<std::uint64_t>(kLabel | index);
  writer.raw(client);
  writer.raw(server);
  return siphash(secret, input);
}

Key derive_key(const Secret& secret,
               std::uint64_t index,
               const Nonce& client,
               const Nonce& server) {
  Key key{};
  ByteWriter writer(key);
  writer.number(derive_word(secret, index, client, server));
  writer.number(derive_word(secret, index + 1, client, server));
  return key;
}

}  // namespace

Key syn_key(const Secret& secret) {
  return derive_key(secret, 0, Nonce{}, Nonce{});
}

SessionKeys derive_session_keys(const Secret& secret, const Nonce& client, const Nonce& server) {
  return {derive_key(secret, 2, client, server), derive_key(secret, 4, client, server)};
}

std::uint64_t packet_auth(const Key& key,
                          PacketType type,
                          std::uint8_t flags,
                          std::span<const std::byte> covered,
                          std::span<const std::byte> body) {  // hot
  if (type != PacketType::kData) {
    return siphash(key, covered, body);
  }
  if ((flags & flag::kCrc) == 0) {
    return siphash(key, covered);
  }
  const std::uint32_t crc = crc32c(body);
  return siphash(key, covered, std::as_bytes(std::span(&crc, 1)));
}

bool is_authentic(const Key& key, const PacketView& packet) {
  return packet_auth(key, packet.header.type, packet.header.flags, packet.covered, packet.body) ==
         packet.header.auth;
}

}  // namespace harp
