#include "protocol/handle.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.hpp"
#include "base/crc32c.hpp"
#include "protocol/types.hpp"

namespace harp {
namespace {

constexpr std::uint32_t kMagic = 0x01505248;  // "HRP" and the version.
constexpr std::size_t kChecksumOffset = kHandleBytes - 4;

}  // namespace

std::optional<ConnectHandle> parse_handle(std::span<const std::byte> bytes) {
  if (bytes.size() < kHandleBytes) {
    return std::nullopt;
  }
  bytes = bytes.first(kHandleBytes);
  ByteReader reader(bytes);
  ConnectHandle handle;
  const auto magic = reader.number<std::uint32_t>();
  handle.family = reader.number<std::uint16_t>();
  handle.port = reader.number<std::uint16_t>();
  reader.raw_into(handle.address);
  handle.listen_id = reader.number<std::uint64_t>();
  reader.raw_into(handle.secret);
  handle.paths = reader.number<std::uint16_t>();
  handle.mtu_bytes = reader.number<std::uint16_t>();
  handle.features = reader.number<std::uint32_t>();
  const auto checksum = reader.number<std::uint32_t>();
  if (magic != kMagic || checksum != crc32c(bytes.first(kChecksumOffset)) ||
      (handle.family != 4 && handle.family != 6) || handle.paths < 1 || handle.paths > kMaxPaths) {
    return std::nullopt;
  }
  return handle;
}

std::array<std::byte, kHandleBytes> encode_handle(const ConnectHandle& handle) {
  std::array<std::byte, kHandleBytes> bytes{};
  ByteWriter writer(bytes);
  writer.number(kMagic);
  writer.number(handle.family);
  writer.number(handle.port);
  writer.raw(handle.address);
  writer.number(handle.listen_id);
  writer.raw(handle.secret);
  writer.number(handle.paths);
  writer.number(handle.mtu_bytes);
  writer.number(handle.features);
  writer.number(crc32c(std::span(bytes).first(kChecksumOffset)));
  return bytes;
}

}  // namespace harp
