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
constexpr std::size_t kIpv4Bytes = 20;
constexpr std::size_t kIpv6Bytes = 40;
constexpr std::size_t kUdpBytes = 8;

/// Between the host's order and the network's.
template <std::unsigned_integral T>
constexpr T swapped(T value) {
  auto bytes = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  std::ranges::reverse(bytes);
  return std::bit_cast<T>(bytes);
}

std::span<const std::byte> ip_of(const Address& address) {
  return std::span(address.ip).first(address.family == 4 ? 4 : 16);
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

/// In the order in which it is stored.
std::uint16_t checksum(std::uint64_t sum) {
  while (sum > 0xffff) {
    sum = (sum & 0xffffU) + (sum >> 16U);
  }
  return static_cast<std::uint16_t>(~sum);
}

/// Of the addresses, the protocol, and how long the UDP packet is.
std::uint64_t pseudo_header_sum(const Address& source,
                                const Address& destination,
                                std::size_t udp_bytes) {
  const std::uint64_t sum = add_words(add_words(0, ip_of(source)), ip_of(destination));
  return sum + swapped(static_cast<std::uint32_t>(udp_bytes)) + swapped(std::uint32_t{kUdp});
}

template <typename T>
void big_endian(ByteWriter& out, T value) {
  out.number(swapped(value));
}

template <typename T>
T big_endian(ByteReader& in) {
  return swapped(in.number<T>());
}

void write_ipv4(const FrameFlow& flow, std::span<std::byte> packet) {
  ByteWriter out(packet);
  out.number(kVersion4);
  out.number(std::uint8_t{0});  // Service class.
  big_endian(out, static_cast<std::uint16_t>(packet.size()));
  out.number(std::uint16_t{0});  // Identification, of what is never fragmented.
  big_endian(out, kDontFragment);
  out.number(kHops);
  out.number(kUdp);
  out.number(std::uint16_t{0});
  out.raw(ip_of(flow.source));
  out.raw(ip_of(flow.destination));
  const std::uint16_t sum = checksum(add_words(0, packet.first(kIpv4Bytes)));
  std::memcpy(&packet[10], &sum, sizeof(sum));
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
  out.number(std::uint16_t{0});
  if (flow.source.family == 6) {
    std::uint16_t sum =
        checksum(add_words(pseudo_header_sum(flow.source, flow.destination, udp.size()), udp));
    sum = sum == 0 ? 0xffff : sum;  // Zero would mean that there is none.
    std::memcpy(&udp[6], &sum, sizeof(sum));
  }
}

/// A sender that leaves the sum to its NIC writes that of the pseudo header; where no NIC is on the
/// way, as between namespaces, it stays so.
bool is_intact(const FrameView& view, std::span<const std::byte> udp, std::uint16_t sum) {
  if (sum == 0) {
    return view.source.family == 4;
  }
  const std::uint64_t pseudo = pseudo_header_sum(view.source, view.destination, udp.size());
  return checksum(add_words(pseudo, udp)) == 0 ||
         sum == static_cast<std::uint16_t>(~checksum(pseudo));
}

/// What the IP header says: the ends, without ports, and the bytes behind it.
std::optional<FrameView> parse_ipv4(std::span<const std::byte> packet) {
  ByteReader in(packet);
  FrameView view;
  const bool is_plain = in.number<std::uint8_t>() == kVersion4;
  (void)in.raw(1);
  const auto length = big_endian<std::uint16_t>(in);
  (void)in.raw(2);
  const bool is_whole = (big_endian<std::uint16_t>(in) & kAnyFragment) == 0;
  (void)in.raw(1);
  const bool is_udp = in.number<std::uint8_t>() == kUdp;
  (void)in.raw(2);
  in.raw_into(std::span(view.source.ip).first(4));
  in.raw_into(std::span(view.destination.ip).first(4));
  if (!in.ok() || !is_plain || !is_whole || !is_udp || length < kIpv4Bytes ||
      length > packet.size()) {
    return std::nullopt;
  }
  view.payload = packet.first(length).subspan(kIpv4Bytes);
  return view;
}

std::optional<FrameView> parse_ipv6(std::span<const std::byte> packet) {
  ByteReader in(packet);
  FrameView view;
  view.source.family = 6;
  view.destination.family = 6;
  const bool is_version6 = (in.number<std::uint8_t>() & 0xf0U) == kVersion6;
  (void)in.raw(3);
  const std::size_t length = big_endian<std::uint16_t>(in);
  const bool is_udp = in.number<std::uint8_t>() == kUdp;
  (void)in.raw(1);
  in.raw_into(view.source.ip);
  in.raw_into(view.destination.ip);
  if (!in.ok() || !is_version6 || !is_udp || length > in.rest().size()) {
    return std::nullopt;
  }
  view.payload = in.rest().first(length);
  return view;
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

std::optional<FrameView> parse_frame(std::span<const std::byte> frame) {
  ByteReader in(frame);
  (void)in.raw(kEthernetBytes - 2);
  const auto type = big_endian<std::uint16_t>(in);
  auto view = type == kIpv4   ? parse_ipv4(in.rest())
              : type == kIpv6 ? parse_ipv6(in.rest())
                              : std::nullopt;
  if (!view) {
    return std::nullopt;
  }
  ByteReader udp(view->payload);
  view->source.port = big_endian<std::uint16_t>(udp);
  view->destination.port = big_endian<std::uint16_t>(udp);
  const std::size_t length = big_endian<std::uint16_t>(udp);
  const auto sum = udp.number<std::uint16_t>();
  if (!udp.ok() || length < kUdpBytes || length > view->payload.size()) {
    return std::nullopt;
  }
  const auto whole = view->payload.first(length);
  if (!is_intact(*view, whole, sum)) {
    return std::nullopt;
  }
  view->payload = whole.subspan(kUdpBytes);
  return view;
}

}  // namespace harp
