// The control frames' decoder against arbitrary bytes; what it accepts must survive a round trip.
//
// Compared are encodings, not values: a scale factor may be not a number, which equals nothing.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "lightcc/wire/control_messages.hpp"

namespace {

using lightcc::Bytes;

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

Bytes encoded(const lightcc::Frame& frame) {
  Bytes bytes;
  lightcc::encode_frame(frame, bytes);
  std::uint32_t length = 0;
  require(bytes.size() > sizeof(length));
  std::memcpy(&length, bytes.data(), sizeof(length));
  require(length == bytes.size() - sizeof(length));
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto frame = lightcc::decode_frame(std::as_bytes(std::span(data, size)));
  if (!frame.ok()) {
    require(frame.status().code() == lightcc::ErrorCode::kPeerFailed);
    return 0;
  }
  const Bytes once = encoded(frame.value());
  const auto again = lightcc::decode_frame(std::span(once).subspan(sizeof(std::uint32_t)));
  require(again.ok());
  require(encoded(again.value()) == once);
  return 0;
}
