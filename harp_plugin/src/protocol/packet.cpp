#include "protocol/packet.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

bool is_known(std::uint8_t type) {
  return type >= static_cast<std::uint8_t>(PacketType::kData) &&
         type <= static_cast<std::uint8_t>(PacketType::kHeartbeat);
}

bool may_be_padded(PacketType type) {
  return type == PacketType::kSyn || type == PacketType::kSynAck;
}

}  // namespace

std::optional<PacketView> parse_packet(std::span<const std::byte> packet) {  // hot
  ByteReader reader(packet);
  Header header;
  const auto first = reader.number<std::uint8_t>();
  header.flags = reader.number<std::uint8_t>();
  header.path = reader.number<std::uint16_t>();
  header.dst_cid = reader.number<std::uint32_t>();
  header.psn = reader.number<std::uint32_t>();
  header.path_seq = reader.number<std::uint32_t>();
  header.msg_seq = reader.number<std::uint32_t>();
  header.msg_off = reader.number<std::uint32_t>();
  header.len = reader.number<std::uint16_t>();
  header.tag = reader.number<std::uint16_t>();
  header.tx_time = reader.number<std::uint32_t>();
  header.auth = reader.number<std::uint64_t>();
  const std::uint8_t type = first & 15;
  if (!reader.ok() || first >> 4 != kWireVersion || !is_known(type) ||
      (header.flags & ~flag::kKnown) != 0 || header.path >= kMaxPaths) {
    return std::nullopt;
  }
  header.type = static_cast<PacketType>(type);
  const auto rest = reader.rest();
  if (rest.size() < header.len || (rest.size() > header.len && !may_be_padded(header.type))) {
    return std::nullopt;
  }
  return PacketView{header, packet.first(kAuthenticatedHeaderBytes), rest.first(header.len)};
}

std::optional<Cid> peek_cid(std::span<const std::byte> packet) {  // hot
  constexpr std::size_t kCidAt = 4;
  if (packet.size() < kHeaderBytes) {
    return std::nullopt;
  }
  return ByteReader(packet.subspan(kCidAt)).number<Cid>();
}

void encode_header(const Header& header, std::span<std::byte> out) {  // hot
  const auto word = [](std::uint32_t low, std::uint32_t high) {
    return low | (std::uint64_t{high} << 32U);
  };
  const auto half = [](std::uint32_t low, std::uint32_t high) { return low | (high << 16U); };
  const auto first = static_cast<std::uint32_t>(kWireVersion << 4) |
                     static_cast<std::uint32_t>(header.type) | (std::uint32_t{header.flags} << 8U);
  // In whole words, as siphash() reads them: a load that covers several younger stores waits until
  // they have left the core, and with them the payload of the packet before.
  ByteWriter writer(out);
  writer.number(word(half(first, header.path), header.dst_cid));
  writer.number(word(header.psn, header.path_seq));
  writer.number(word(header.msg_seq, header.msg_off));
  writer.number(word(half(header.len, header.tag), header.tx_time));
  writer.number(header.auth);
}

}  // namespace harp
