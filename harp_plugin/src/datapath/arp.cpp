#include "datapath/arp.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.hpp"
#include "base/time.hpp"
#include "datapath/address.hpp"
#include "datapath/frame.hpp"

namespace harp {
namespace {

constexpr Duration kBetweenRequests = std::chrono::milliseconds(20);
constexpr Duration kKept = std::chrono::seconds(30);
constexpr MacAddress kEverybody{std::byte{0xff},
                                std::byte{0xff},
                                std::byte{0xff},
                                std::byte{0xff},
                                std::byte{0xff},
                                std::byte{0xff}};
/// Ethernet type, hardware Ethernet, protocol IPv4, lengths of both addresses.
constexpr std::array<std::byte, 8> kPrelude{std::byte{0x08},
                                            std::byte{0x06},
                                            std::byte{0},
                                            std::byte{1},
                                            std::byte{0x08},
                                            std::byte{0},
                                            std::byte{6},
                                            std::byte{4}};
constexpr std::uint16_t kRequest = 1;
constexpr std::uint16_t kReply = 2;

std::uint32_t read_number(ByteReader& in, std::size_t bytes) {
  std::uint32_t number = 0;
  for (const std::byte byte : in.raw(bytes)) {
    number = (number << 8U) | std::to_integer<std::uint32_t>(byte);
  }
  return number;
}

void write_number(ByteWriter& out, std::uint32_t number, std::size_t bytes) {
  for (std::size_t i = bytes; i > 0; --i) {
    out.number(static_cast<std::uint8_t>(number >> (8 * (i - 1))));
  }
}

}  // namespace

std::optional<ArpPacket> parse_arp(std::span<const std::byte> frame) {
  ByteReader in(frame);
  (void)in.raw(2 * sizeof(MacAddress));
  bool is_arp = true;
  for (const std::byte expected : kPrelude) {
    is_arp = is_arp && static_cast<std::byte>(in.number<std::uint8_t>()) == expected;
  }
  const std::uint32_t operation = read_number(in, 2);
  ArpPacket packet{.is_request = operation == kRequest};
  in.raw_into(packet.sender_mac);
  packet.sender_ip = read_number(in, 4);
  (void)in.raw(sizeof(MacAddress));
  packet.target_ip = read_number(in, 4);
  if (!in.ok() || !is_arp || (operation != kRequest && operation != kReply)) {
    return std::nullopt;
  }
  return packet;
}

ArpFrame encode_arp(const ArpPacket& packet, const MacAddress& to) {
  ArpFrame frame{};
  ByteWriter out(frame);
  out.raw(to);
  out.raw(packet.sender_mac);
  out.raw(kPrelude);
  write_number(out, packet.is_request ? kRequest : kReply, 2);
  out.raw(packet.sender_mac);
  write_number(out, packet.sender_ip, 4);
  out.raw(packet.is_request ? MacAddress{} : to);
  write_number(out, packet.target_ip, 4);
  return frame;
}

std::uint32_t ipv4_number(const Address& address) {
  ByteReader in(address.ip);
  return read_number(in, 4);
}

ArpTable::Hop ArpTable::find(const Address& peer, Time now) {
  const std::uint32_t ip = ipv4_number(peer);
  const std::uint32_t mask = self_.prefix == 0 ? 0 : ~std::uint32_t{0} << (32 - self_.prefix);
  const std::uint32_t next = ((ip ^ self_.ip) & mask) == 0 ? ip : self_.gateway;
  Hop hop;
  if (next == 0) {
    return hop;
  }
  if (recent_.first != next) {
    if (neighbours_.size() >= kMaxNeighbours && !neighbours_.contains(next)) {
      neighbours_.clear();
    }
    recent_ = {next, &neighbours_[next]};
  }
  Neighbour& neighbour = *recent_.second;
  hop.mac = neighbour.mac ? &*neighbour.mac : nullptr;
  if (now >= neighbour.ask_at) {
    neighbour.ask_at = now + kBetweenRequests;
    hop.request = encode_arp(
        {.is_request = true, .sender_mac = self_.mac, .sender_ip = self_.ip, .target_ip = next},
        kEverybody);
  }
  return hop;
}

/// Believes who asks for this end, and answers to what was asked: nobody else fills the table.
std::optional<ArpFrame> ArpTable::on_frame(std::span<const std::byte> frame, Time now) {
  const auto packet = parse_arp(frame);
  if (!packet || packet->target_ip != self_.ip || packet->sender_ip == self_.ip) {
    return std::nullopt;
  }
  const auto known = neighbours_.find(packet->sender_ip);
  if (known != neighbours_.end()) {
    known->second = {.mac = packet->sender_mac, .ask_at = now + kKept};
  }
  if (!packet->is_request) {
    return std::nullopt;
  }
  return encode_arp({.is_request = false,
                     .sender_mac = self_.mac,
                     .sender_ip = self_.ip,
                     .target_ip = packet->sender_ip},
                    packet->sender_mac);
}

}  // namespace harp
