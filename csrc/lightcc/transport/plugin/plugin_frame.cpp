#include "lightcc/transport/plugin/plugin_frame.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "lightcc/base/sha256.hpp"

namespace lightcc {
namespace {

constexpr std::uint8_t kHandleVersion = 1;
constexpr std::uint32_t kHelloMagic = 0x314e434c;  // "LCN1"
constexpr std::size_t kProvenBytes = kChannelHelloBytes + sizeof(std::uint32_t);
constexpr std::size_t kMaxNameBytes = 32;

Sha256Digest proof_of(std::span<const std::byte> proven,
                      const std::string& secret,
                      const ListenNonce& nonce) {
  HmacSha256 mac(as_bytes(secret));
  mac.update(as_bytes("lightcc net plugin hello"));
  mac.update(nonce);
  mac.update(proven);
  return mac.finish();
}

bool is_sensible_piece(std::size_t bytes) {
  return bytes >= kPieceAlignment && bytes <= kPieceBytes && bytes % kPieceAlignment == 0;
}

Status bad_handle(const char* what) {
  return make_error(ErrorCode::kInvalidArgument, "net plugin transport handle with %s", what);
}

Status bad_hello(const char* what) {
  return make_error(ErrorCode::kPeerFailed, "connection hello with %s", what);
}

}  // namespace

TransportHandle encode_plugin_handle(const PluginHandle& handle) {
  TransportHandle out;
  ByteWriter writer(out);
  writer.number(kHandleVersion);
  writer.number(handle.world_id);
  writer.raw(handle.nonce);
  writer.number(handle.piece_bytes);
  writer.string(handle.plugin.substr(0, kMaxNameBytes));
  writer.raw(handle.handle);
  return out;
}

Result<PluginHandle> decode_plugin_handle(std::span<const std::byte> in) {
  ByteReader reader(in);
  const auto version = reader.number<std::uint8_t>();
  PluginHandle handle;
  handle.world_id = reader.number<std::uint64_t>();
  const auto nonce = reader.raw(handle.nonce.size());
  handle.piece_bytes = reader.number<std::uint32_t>();
  handle.plugin = reader.string(kMaxNameBytes);
  const auto plugins_own = reader.raw(handle.handle.size());
  if (!reader.finished()) {
    return bad_handle("another shape");
  }
  if (version != kHandleVersion) {
    return bad_handle("an unknown version");
  }
  if (!is_sensible_piece(handle.piece_bytes)) {
    return bad_handle("an impossible size of pieces");
  }
  std::ranges::copy(nonce, handle.nonce.begin());
  std::ranges::copy(plugins_own, handle.handle.begin());
  return handle;
}

PluginHelloBytes encode_plugin_hello(const ChannelHello& hello,
                                     const std::string& secret,
                                     const ListenNonce& nonce) {
  Bytes out;
  out.reserve(kPluginHelloBytes);
  ByteWriter writer(out);
  encode_channel_hello(hello, kHelloMagic, writer);
  writer.number(hello.piece_bytes);
  writer.raw(proof_of(out, secret, nonce));
  PluginHelloBytes bytes{};
  std::ranges::copy(out, bytes.begin());
  return bytes;
}

Result<ChannelHello> decode_plugin_hello(const PluginHelloBytes& in,
                                         const std::string& secret,
                                         const ListenNonce& nonce) {
  const std::span<const std::byte> all(in);
  if (!equal_constant_time(all.subspan(kProvenBytes),
                           proof_of(all.first(kProvenBytes), secret, nonce))) {
    return bad_hello("a wrong proof of the job's secret");
  }
  ByteReader reader(all.first(kProvenBytes));
  LIGHTCC_ASSIGN_OR_RETURN(ChannelHello hello, decode_channel_hello(reader, kHelloMagic));
  hello.piece_bytes = reader.number<std::uint32_t>();
  if (!is_sensible_piece(hello.piece_bytes)) {
    return bad_hello("an impossible size of pieces");
  }
  return hello;
}

}  // namespace lightcc
