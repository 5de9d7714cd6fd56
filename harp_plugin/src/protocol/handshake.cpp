#include "protocol/handshake.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

/// For MTUs 9001, 8500, 3498 (a page on ENA), 1500, and the least that IPv6 promises, 1280.
constexpr std::array<std::uint16_t, 5> kLadder{8896, 8384, 3392, 1408, 1152};

void write_offer(const Offer& offer, ByteWriter& writer) {
  writer.number(offer.cid);
  writer.number(offer.initial_psn);
  writer.number(offer.initial_msg);
  writer.number(offer.window_packets);
  writer.number(offer.pss);
  writer.number(offer.paths);
  writer.number(offer.eager_packets);
  writer.number(offer.buffer_bytes);
}

Offer read_offer(ByteReader& reader) {
  Offer offer;
  offer.cid = reader.number<std::uint32_t>();
  offer.initial_psn = reader.number<std::uint32_t>();
  offer.initial_msg = reader.number<std::uint32_t>();
  offer.window_packets = reader.number<std::uint32_t>();
  offer.pss = reader.number<std::uint16_t>();
  offer.paths = reader.number<std::uint16_t>();
  offer.eager_packets = reader.number<std::uint32_t>();
  offer.buffer_bytes = reader.number<std::uint32_t>();
  const bool sane = offer.cid != 0 && offer.pss >= kPssUnit && offer.pss <= kMaxPss &&
                    offer.pss % kPssUnit == 0 && offer.paths >= 1 && offer.paths <= kMaxPaths &&
                    std::has_single_bit(offer.window_packets) && offer.window_packets >= 64 &&
                    offer.window_packets <= kMaxWindowPackets && offer.eager_packets >= 1 &&
                    offer.eager_packets <= kMaxWindowPackets;
  if (!sane) {
    reader.fail();
  }
  return offer;
}

}  // namespace

std::optional<Syn> parse_syn(std::span<const std::byte> body) {
  ByteReader reader(body);
  Syn syn;
  syn.listen_id = reader.number<std::uint64_t>();
  reader.raw_into(syn.nonce);
  syn.offer = read_offer(reader);
  return reader.finished() ? std::optional(syn) : std::nullopt;
}

std::optional<SynAck> parse_syn_ack(std::span<const std::byte> body) {
  ByteReader reader(body);
  SynAck syn_ack;
  reader.raw_into(syn_ack.nonce);
  syn_ack.offer = read_offer(reader);
  syn_ack.echo.tx_time = reader.number<std::uint32_t>();
  syn_ack.echo.delay = reader.number<std::uint32_t>();
  return reader.finished() ? std::optional(syn_ack) : std::nullopt;
}

std::optional<Conf> parse_conf(std::span<const std::byte> body) {
  ByteReader reader(body);
  Conf conf;
  conf.echo.tx_time = reader.number<std::uint32_t>();
  conf.echo.delay = reader.number<std::uint32_t>();
  conf.pss = reader.number<std::uint16_t>();
  const auto reserved = reader.number<std::uint16_t>();
  const bool sane = conf.pss >= kPssUnit && conf.pss % kPssUnit == 0 && reserved == 0;
  return reader.finished() && sane ? std::optional(conf) : std::nullopt;
}

std::optional<Echo> parse_echo(std::span<const std::byte> body) {
  ByteReader reader(body);
  Echo echo;
  echo.tx_time = reader.number<std::uint32_t>();
  echo.delay = reader.number<std::uint32_t>();
  return reader.finished() ? std::optional(echo) : std::nullopt;
}

std::optional<SessionError> parse_reset(std::span<const std::byte> body) {
  ByteReader reader(body);
  const auto reason = reader.number<std::uint16_t>();
  reader.number<std::uint16_t>();
  reader.number<std::uint32_t>();
  const bool known = reason >= static_cast<std::uint16_t>(SessionError::kPeerTimeout) &&
                     reason <= static_cast<std::uint16_t>(SessionError::kProtocolViolation);
  if (!reader.finished() || !known) {
    return std::nullopt;
  }
  return static_cast<SessionError>(reason);
}

std::size_t encode_syn(const Syn& syn, std::span<std::byte> out) {
  ByteWriter writer(out);
  writer.number(syn.listen_id);
  writer.raw(syn.nonce);
  write_offer(syn.offer, writer);
  return writer.written();
}

std::size_t encode_syn_ack(const SynAck& syn_ack, std::span<std::byte> out) {
  ByteWriter writer(out);
  writer.raw(syn_ack.nonce);
  write_offer(syn_ack.offer, writer);
  writer.number(syn_ack.echo.tx_time);
  writer.number(syn_ack.echo.delay);
  return writer.written();
}

std::size_t encode_conf(const Conf& conf, std::span<std::byte> out) {
  ByteWriter writer(out);
  writer.number(conf.echo.tx_time);
  writer.number(conf.echo.delay);
  writer.number(conf.pss);
  writer.number<std::uint16_t>(0);
  return writer.written();
}

std::size_t encode_echo(const Echo& echo, std::span<std::byte> out) {
  ByteWriter writer(out);
  writer.number(echo.tx_time);
  writer.number(echo.delay);
  return writer.written();
}

std::size_t encode_reset(SessionError reason, std::span<std::byte> out) {
  ByteWriter writer(out);
  writer.number(static_cast<std::uint16_t>(reason));
  writer.number<std::uint16_t>(0);
  writer.number<std::uint32_t>(0);
  return writer.written();
}

std::uint16_t pss_for_mtu(std::size_t mtu_bytes) {
  if (mtu_bytes < kIpUdpBytes + kHeaderBytes + kPssUnit) {
    return 0;
  }
  const std::size_t maximum = std::min(mtu_bytes - kIpUdpBytes - kHeaderBytes, kMaxPss);
  return static_cast<std::uint16_t>(maximum / kPssUnit * kPssUnit);
}

std::uint16_t pss_ladder_next(std::uint16_t pss) {
  for (const std::uint16_t step : kLadder) {
    if (step < pss) {
      return step;
    }
  }
  return pss;
}

}  // namespace harp
