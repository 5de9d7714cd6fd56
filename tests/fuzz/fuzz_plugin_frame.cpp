// Handles and hellos of the plugin transport. What was decoded encodes to the same bytes; a hello
// that was sealed with the right secret is refused, or comes back as it was.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "lightcc/base/bytes.hpp"
#include "lightcc/transport/plugin/plugin_frame.hpp"

namespace {

using lightcc::ByteReader;
using lightcc::Bytes;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

void try_handle(std::span<const std::byte> in) {
  const auto handle = lightcc::decode_plugin_handle(in);
  if (handle.ok()) {
    const auto again = lightcc::encode_plugin_handle(handle.value());
    // A varint may be written longer than need be; the content is what counts.
    check(lightcc::encode_plugin_handle(lightcc::decode_plugin_handle(again).value()) == again);
  }
}

void try_hello(std::span<const std::byte> in) {
  lightcc::PluginHelloBytes bytes{};
  std::copy_n(in.begin(), std::min(in.size(), bytes.size()), bytes.begin());
  check(!lightcc::decode_plugin_hello(bytes, "secret", {}).ok());
  ByteReader reader(in);
  lightcc::ChannelHello hello;
  hello.world_id = reader.number<std::uint64_t>();
  hello.attempt = reader.number<std::uint64_t>();
  hello.channel.source = reader.number<std::uint32_t>();
  hello.channel.lane = reader.number<std::uint32_t>();
  hello.index = reader.number<std::uint16_t>();
  hello.count = reader.number<std::uint16_t>();
  hello.piece_bytes = reader.number<std::uint32_t>();
  const auto back =
      lightcc::decode_plugin_hello(lightcc::encode_plugin_hello(hello, "secret", {}), "secret", {});
  check(!back.ok() || back.value() == hello);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto in = std::as_bytes(std::span(data, size));
  try_handle(in);
  try_hello(in);
  return 0;
}
