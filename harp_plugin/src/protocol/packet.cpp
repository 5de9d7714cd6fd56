#include "protocol/packet.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "base/bytes.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

bool is_known(std::uint8_t type) {
  return type >= static_cast<std::uint8_t>(PacketType::kData) &&
         type <= static_cast<std::uint8_t>(PacketType::kHeartbeat);
}

}  // namespace

std::optional<PacketView> parse_packet(std::span<const std::byte> packet) {  // hot
  std::optional<PacketView> view(std::in_place);
  ByteReader reader(packet);
  Header& header = view->header;
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
  const auto rest = reader.rest();
  if (!reader.ok() || first >> 4 != kWireVersion || !is_known(type) ||
      (header.flags & ~flag::kKnown) != 0 || header.path >= kMaxPaths || rest.size() < header.len) {
    view.reset();
    return view;
  }
  header.type = static_cast<PacketType>(type);
  view->covered = packet.first(kAuthenticatedHeaderBytes);
  view->body = rest.first(header.len);
  return view;
}

}  // namespace harp
