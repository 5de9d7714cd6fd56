#include "datapath/frame.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/bytes.hpp"
#include "datapath/address.hpp"

namespace harp {
namespace {

constexpr std::uint16_t kIpv4 = 0x0800;
constexpr std::uint16_t kIpv6 = 0x86dd;
constexpr std::uint8_t kVersion4 = 0x45;  // Five words of header.
constexpr std::uint8_t kVersion6 = 0x60;
constexpr std::uint8_t kUdp = 17;
constexpr std::uint8_t kHops = 64;
constexpr std::uint16_t kDontFragment = 0x4000;
constexpr std::uint16_t kAnyFragment = 0x3fff;
constexpr std::size_t kIpv6Bytes = 40;
constexpr std::size_t kUdpBytes = 8;

/// Between the host's order and the network's.
template <std::unsigned_integral T>
constexpr T swapped(T value) {
  auto bytes = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  std::ranges::reverse(bytes);
  return std::bit_cast<T>(bytes);
}

/// The sum of RFC 1071 before it is folded and inverted; of all pieces but the last, the length is
/// even.
std::uint64_t add_words(std::uint64_t sum, std::span<const std::byte> bytes) {
  while (bytes.size() >= sizeof(std::uint32_t)) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    sum += word;
    bytes = bytes.subspan(sizeof(word));
  }
  std::uint32_t rest = 0;
  std::memcpy(&rest, bytes.data(), bytes.size());
  return sum + rest;
}

/// Reads it in the order in which it is stored.
std::uint16_t checksum(std::uint64_t sum) {
  while (sum > 0xffff) {
    sum = (sum & 0xffffU) + (sum >> 16U);
  }
  return static_cast<std::uint16_t>(~sum);
}

/// Sums both addresses, the protocol, and the length of the UDP packet.
std::uint64_t pseudo_header_sum(std::span<const std::byte> source_ip,
                                std::span<const std::byte> destination_ip,
                                std::size_t udp_bytes) {
  const std::uint64_t sum = add_words(add_words(0, source_ip), destination_ip);
  return sum + swapped(static_cast<std::uint32_t>(udp_bytes)) + swapped(std::uint32_t{kUdp});
}

template <typename T>
void big_endian(ByteWriter& out, T value) {
  out.number(swapped(value));
}

void write_ipv4(const FrameFlow& flow, std::span<std::byte> packet) {
  // Summed up from what is known, and not from what was just written: see encode_header().
  constexpr std::uint64_t kFixed = kVersion4 + swapped(kDontFragment) + (kHops | kUdp << 8U);
  const std::uint16_t length = swapped(static_cast<std::uint16_t>(packet.size()));
  ByteWriter out(packet);
  out.number(kVersion4);
  out.number(std::uint8_t{0});  // Service class.
  out.number(length);
  out.number(std::uint16_t{0});  // Identification, of what is never fragmented.
  big_endian(out, kDontFragment);
  out.number(kHops);
  out.number(kUdp);
  out.number(
      checksum(add_words(add_words(kFixed + length, ip_of(flow.source)), ip_of(flow.destination))));
  out.raw(ip_of(flow.source));
  out.raw(ip_of(flow.destination));
}

void write_ipv6(const FrameFlow& flow, std::span<std::byte> packet) {
  ByteWriter out(packet);
  out.number(kVersion6);
  out.raw(std::array<std::byte, 3>{});  // Class and flow label.
  big_endian(out, static_cast<std::uint16_t>(packet.size() - kIpv6Bytes));
  out.number(kUdp);
  out.number(kHops);
  out.raw(ip_of(flow.source));
  out.raw(ip_of(flow.destination));
}

void write_udp(const FrameFlow& flow, std::span<std::byte> udp) {
  ByteWriter out(udp);
  big_endian(out, flow.source.port);
  big_endian(out, flow.destination.port);
  big_endian(out, static_cast<std::uint16_t>(udp.size()));
  const auto pseudo_sum = [&] {
    return pseudo_header_sum(ip_of(flow.source), ip_of(flow.destination), udp.size());
  };
  if (flow.sum_by_nic) {
    out.number(static_cast<std::uint16_t>(~checksum(pseudo_sum())));
    return;
  }
  out.number(std::uint16_t{0});
  if (flow.source.family == 6) {
    std::uint16_t sum = checksum(add_words(pseudo_sum(), udp));
    sum = sum == 0 ? 0xffff : sum;  // Zero would mean that there is none.
    std::memcpy(&udp[6], &sum, sizeof(sum));
  }
}

/// A sender that leaves the sum to its NIC writes that of the pseudo header; where no NIC is on the
/// way, as between namespaces, it stays so.
bool is_intact(const FrameView& view, std::span<const std::byte> udp, std::uint16_t sum) {
  if (sum == 0) {
    return view.source_ip.size() == 4;
  }
  const std::uint64_t pseudo = pseudo_header_sum(view.source_ip, view.destination_ip, udp.size());
  return checksum(add_words(pseudo, udp)) == 0 ||
         sum == static_cast<std::uint16_t>(~checksum(pseudo));
}

/// At a place that is there.
std::uint16_t big_endian_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint16_t value = 0;
  std::memcpy(&value, &bytes[at], sizeof(value));
  return swapped(value);
}

/// Reads the ends, without ports, and returns the bytes behind the header; empty: see
/// parse_frame(). One look at the length goes before all others: this is done for every packet.
std::span<const std::byte> parse_ipv4(std::span<const std::byte> packet, FrameView& view) {
  if (packet.size() < kIpv4Bytes || packet[0] != std::byte{kVersion4} ||
      packet[9] != std::byte{kUdp} || (big_endian_at(packet, 6) & kAnyFragment) != 0) {
    return {};
  }
  const std::size_t length = big_endian_at(packet, 2);
  if (length < kIpv4Bytes || length > packet.size()) {
    return {};
  }
  view.source_ip = packet.subspan(12, 4);
  view.destination_ip = packet.subspan(16, 4);
  return packet.first(length).subspan(kIpv4Bytes);
}

std::span<const std::byte> parse_ipv6(std::span<const std::byte> packet, FrameView& view) {
  if (packet.size() < kIpv6Bytes || (packet[0] & std::byte{0xf0}) != std::byte{kVersion6} ||
      packet[6] != std::byte{kUdp}) {
    return {};
  }
  const std::size_t length = big_endian_at(packet, 4);
  if (length > packet.size() - kIpv6Bytes) {
    return {};
  }
  view.source_ip = packet.subspan(8, 16);
  view.destination_ip = packet.subspan(24, 16);
  return packet.subspan(kIpv6Bytes, length);
}

}  // namespace

void write_frame_headers(const FrameFlow& flow, std::span<std::byte> frame) {
  const bool is_v4 = flow.source.family == 4;
  ByteWriter out(frame);
  out.raw(flow.destination_mac);
  out.raw(flow.source_mac);
  big_endian(out, is_v4 ? kIpv4 : kIpv6);
  const auto packet = frame.subspan(kEthernetBytes);
  if (is_v4) {
    write_ipv4(flow, packet);
    write_udp(flow, packet.subspan(kIpv4Bytes));
  } else {
    write_ipv6(flow, packet);
    write_udp(flow, packet.subspan(kIpv6Bytes));
  }
}

std::optional<FrameView> parse_frame(std::span<const std::byte> frame, bool is_verified) {  // hot
  std::optional<FrameView> view;
  if (frame.size() < kEthernetBytes) {
    return view;
  }
  view.emplace();
  const std::uint16_t type = big_endian_at(frame, kEthernetBytes - 2);
  const auto packet = frame.subspan(kEthernetBytes);
  const auto udp = type == kIpv4   ? parse_ipv4(packet, *view)
                   : type == kIpv6 ? parse_ipv6(packet, *view)
                                   : std::span<const std::byte>();
  const std::size_t length = udp.size() < kUdpBytes ? 0 : big_endian_at(udp, 4);
  if (length < kUdpBytes || length > udp.size()) {
    view.reset();
    return view;
  }
  view->source_port = big_endian_at(udp, 0);
  view->destination_port = big_endian_at(udp, 2);
  const auto whole = udp.first(length);
  std::uint16_t sum = 0;
  std::memcpy(&sum, &udp[6], sizeof(sum));
  if (!is_verified && !is_intact(*view, whole, sum)) {
    view.reset();
    return view;
  }
  view->payload = whole.subspan(kUdpBytes);
  return view;
}

}  // namespace harp
