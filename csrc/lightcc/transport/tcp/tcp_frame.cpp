#include "lightcc/transport/tcp/tcp_frame.hpp"

#include <netinet/in.h>

#include <cstring>

namespace lightcc {
namespace {

constexpr std::uint32_t kStripeMagic = 0x3153434c;  // "LCS1"
constexpr std::uint32_t kHelloMagic = 0x3148434c;   // "LCH1"
constexpr std::uint8_t kHandleVersion = 1;
constexpr std::uint8_t kIpv4 = 4;
constexpr std::uint8_t kIpv6 = 6;

template <typename T>
void put(StripeHeaderBytes& out, std::size_t at, T value) {
  std::memcpy(out.data() + at, &value, sizeof(value));
}

Status bad_handle(const char* what) {
  return make_error(ErrorCode::kInvalidArgument, "TCP transport handle with %s", what);
}

SocketAddress make_ipv4(std::span<const std::byte> bytes, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  std::memcpy(&address.sin_addr, bytes.data(), sizeof(address.sin_addr));
  return SocketAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

SocketAddress make_ipv6(std::span<const std::byte> bytes, std::uint16_t port) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  std::memcpy(&address.sin6_addr, bytes.data(), sizeof(address.sin6_addr));
  return SocketAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

}  // namespace

void encode_stripe_header(const StripeHeader& header, StripeHeaderBytes& out) {
  put(out, 0, kStripeMagic);
  put(out, 4, header.length);
  put(out, 8, header.message);
  put(out, 16, header.offset);
  put(out, 24, header.total);
}

Result<StripeHeader> decode_stripe_header(const StripeHeaderBytes& in) {
  ByteReader reader(in);
  const auto magic = reader.number<std::uint32_t>();
  StripeHeader header;
  header.length = reader.number<std::uint32_t>();
  header.message = reader.number<std::uint64_t>();
  header.offset = reader.number<std::uint64_t>();
  header.total = reader.number<std::uint64_t>();
  if (magic != kStripeMagic) {
    return make_error(ErrorCode::kPeerFailed, "a stripe header with magic %08x", magic);
  }
  const bool inside = header.total == 0 ? header.offset == 0 : header.offset < header.total;
  if (!inside || header.offset % kStripeBytes != 0 ||
      header.length != kStripeCut.length(header.total, header.offset)) {
    return make_error(ErrorCode::kPeerFailed,
                      "a stripe of %u bytes at %llu of a message of %llu bytes, which no cut makes",
                      header.length,
                      static_cast<unsigned long long>(header.offset),
                      static_cast<unsigned long long>(header.total));
  }
  return header;
}

Bytes encode_tcp_hello(const ChannelHello& hello) {
  Bytes out;
  ByteWriter writer(out);
  encode_channel_hello(hello, kHelloMagic, writer);
  return out;
}

Result<ChannelHello> decode_tcp_hello(std::span<const std::byte> in) {
  ByteReader reader(in);
  LIGHTCC_ASSIGN_OR_RETURN(const ChannelHello hello, decode_channel_hello(reader, kHelloMagic));
  if (!reader.finished()) {
    return make_error(ErrorCode::kPeerFailed, "channel hello with more than it has");
  }
  return hello;
}

Result<TransportHandle> encode_tcp_handle(const TcpHandle& handle) {
  TransportHandle out;
  ByteWriter writer(out);
  const int family = handle.address.family();
  if (family != AF_INET && family != AF_INET6) {
    return bad_handle("an address that is neither IPv4 nor IPv6");
  }
  writer.number(kHandleVersion);
  writer.number(family == AF_INET ? kIpv4 : kIpv6);
  writer.number(handle.address.port());
  writer.number(handle.world_id);
  if (family == AF_INET) {
    sockaddr_in address{};
    std::memcpy(&address, handle.address.data(), sizeof(address));
    writer.raw(std::as_bytes(std::span(&address.sin_addr, 1)));
  } else {
    sockaddr_in6 address{};
    std::memcpy(&address, handle.address.data(), sizeof(address));
    writer.raw(std::as_bytes(std::span(&address.sin6_addr, 1)));
  }
  return out;
}

Result<TcpHandle> decode_tcp_handle(std::span<const std::byte> in) {
  ByteReader reader(in);
  const auto version = reader.number<std::uint8_t>();
  const auto ip_version = reader.number<std::uint8_t>();
  const auto port = reader.number<std::uint16_t>();
  TcpHandle handle;
  handle.world_id = reader.number<std::uint64_t>();
  if (!reader.ok()) {
    return bad_handle("too few bytes");
  }
  if (version != kHandleVersion) {
    return bad_handle("an unknown version");
  }
  if (ip_version != kIpv4 && ip_version != kIpv6) {
    return bad_handle("an unknown kind of address");
  }
  const auto address = reader.raw(ip_version == kIpv4 ? sizeof(in_addr) : sizeof(in6_addr));
  if (!reader.finished() || port == 0) {
    return bad_handle("a broken address");
  }
  handle.address = ip_version == kIpv4 ? make_ipv4(address, port) : make_ipv6(address, port);
  return handle;
}

}  // namespace lightcc
