// Who may speak: keys from the secret in the connect handle, and the MAC that every packet carries.
//
// The MAC is 64 bits of SipHash-2-4 over the first 32 header bytes and what follows them: for DATA
// the CRC-32C of the payload (where flag::kCrc is set), for every other packet the body itself. A
// packet whose payload was damaged is thus told from a good one by the same comparison as a forged
// one. Each direction has its own key, so a packet cannot be reflected.
//
// Not confidentiality, and no protection of payloads against somebody on the path, who can keep a
// CRC while he changes bytes: docs/harp/threat-model.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/siphash.hpp"
#include "protocol/packet.hpp"

namespace harp {

using Secret = Key;
using Nonce = std::array<std::byte, 16>;

struct SessionKeys {
  Key client_to_server{};
  Key server_to_client{};
};

/// The key under which a SYN is sealed: knowing the handle is the right to connect.
Key syn_key(const Secret& secret);

/// Keys of one session. Both nonces enter, so neither end alone can repeat an old session.
SessionKeys derive_session_keys(const Secret& secret, const Nonce& client, const Nonce& server);

/// The MAC of a packet. `covered` are its first 32 bytes; `body` is its payload or body.
std::uint64_t packet_auth(const Key& key,
                          PacketType type,
                          std::uint8_t flags,
                          std::span<const std::byte> covered,
                          std::span<const std::byte> body);

/// Whether the packet's MAC is the one that `key` gives. Takes the same time for every wrong MAC.
bool is_authentic(const Key& key, const PacketView& packet);

/// Writes header and MAC, whatever its `auth` is. `out` holds kHeaderBytes; `body` is what will
/// follow it on the wire.
inline void seal_packet(const Key& key,
                        const Header& header,
                        std::span<const std::byte> body,
                        std::span<std::byte> out) {  // hot
  encode_header(header, out);
  const std::uint64_t auth =
      packet_auth(key, header.type, header.flags, out.first(kAuthenticatedHeaderBytes), body);
  std::memcpy(out.data() + kAuthenticatedHeaderBytes, &auth, sizeof(auth));
}

}  // namespace harp
