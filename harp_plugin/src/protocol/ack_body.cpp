#include "protocol/ack_body.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

/// Beside the path of a report.
constexpr std::uint16_t kAstray = 0x8000;

}  // namespace

std::optional<AckBody> parse_ack(std::span<const std::byte> body) {
  ByteReader reader(body);
  AckBody ack;
  ack.cum_psn = reader.number<std::uint32_t>();
  ack.msg_limit = reader.number<std::uint32_t>();
  ack.spurious = reader.number<std::uint32_t>();
  ack.echo_path = reader.number<std::uint16_t>();
  ack.path_count = reader.number<std::uint8_t>();
  ack.sack_words = reader.number<std::uint8_t>();
  ack.echo_tx_time = reader.number<std::uint32_t>();
  ack.echo_delay = reader.number<std::uint32_t>();
  if (!reader.ok() || ack.path_count > kMaxAckPaths || ack.sack_words > kMaxSackWords ||
      (ack.echo_path >= kMaxPaths && ack.echo_path != kNoPath)) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < ack.path_count; ++i) {
    const auto path = reader.number<std::uint16_t>();
    ack.paths[i].path = path & ~kAstray;
    ack.paths[i].is_astray = (path & kAstray) != 0;
    ack.paths[i].newest = reader.number<std::uint32_t>();
    if (ack.paths[i].path >= kMaxPaths) {
      return std::nullopt;
    }
  }
  for (std::size_t i = 0; i < ack.sack_words; ++i) {
    ack.sack[i] = reader.number<std::uint64_t>();
  }
  return reader.finished() ? std::optional(ack) : std::nullopt;
}

std::size_t encode_ack(const AckBody& ack, std::span<std::byte> out) {
  ByteWriter writer(out);
  writer.number(ack.cum_psn);
  writer.number(ack.msg_limit);
  writer.number(ack.spurious);
  writer.number(ack.echo_path);
  writer.number(ack.path_count);
  writer.number(ack.sack_words);
  writer.number(ack.echo_tx_time);
  writer.number(ack.echo_delay);
  for (std::size_t i = 0; i < ack.path_count; ++i) {
    const unsigned astray = ack.paths[i].is_astray ? kAstray : 0U;
    writer.number(static_cast<std::uint16_t>(ack.paths[i].path | astray));
    writer.number(ack.paths[i].newest);
  }
  for (std::size_t i = 0; i < ack.sack_words; ++i) {
    writer.number(ack.sack[i]);
  }
  return writer.written();
}

}  // namespace harp
