#include "lightcc/transport/channel/channel_hello.hpp"

namespace lightcc {
namespace {

constexpr std::uint16_t kHelloVersion = 1;

}  // namespace

void encode_channel_hello(const ChannelHello& hello, std::uint32_t magic, ByteWriter& out) {
  out.number(magic);
  out.number(kHelloVersion);
  out.number(hello.count);
  out.number(hello.index);
  out.number(std::uint16_t{0});
  out.number(hello.world_id);
  out.number(hello.attempt);
  out.number(hello.channel.source);
  out.number(hello.channel.destination);
  out.number(hello.channel.process_set);
  out.number(hello.channel.lane);
}

Result<ChannelHello> decode_channel_hello(ByteReader& in, std::uint32_t magic) {
  const auto its_magic = in.number<std::uint32_t>();
  const auto version = in.number<std::uint16_t>();
  ChannelHello hello;
  hello.count = in.number<std::uint16_t>();
  hello.index = in.number<std::uint16_t>();
  const auto zero = in.number<std::uint16_t>();
  hello.world_id = in.number<std::uint64_t>();
  hello.attempt = in.number<std::uint64_t>();
  hello.channel.source = in.number<std::uint32_t>();
  hello.channel.destination = in.number<std::uint32_t>();
  hello.channel.process_set = in.number<std::uint32_t>();
  hello.channel.lane = in.number<std::uint32_t>();
  const char* wrong = nullptr;
  if (!in.ok() || its_magic != magic) {
    wrong = "another shape";
  } else if (version != kHelloVersion || zero != 0) {
    wrong = "an unknown version";
  } else if (hello.count < 1 || hello.count > kMaxConnections || hello.index >= hello.count) {
    wrong = "an impossible index or number of connections";
  }
  if (wrong != nullptr) {
    return make_error(ErrorCode::kPeerFailed, "channel hello with %s", wrong);
  }
  return hello;
}

}  // namespace lightcc
