// Handles, hellos and stripe headers from arbitrary bytes: whatever decodes must encode to the same
// bytes again and keep what its type promises.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/transport/tcp/tcp_frame.hpp"

namespace {

using lightcc::StripeHeaderBytes;

// A violated promise must end the process, in every build type.
void require(bool promise) {
  if (!promise) {
    __builtin_trap();
  }
}

void check_handle(std::span<const std::byte> in) {
  auto handle = lightcc::decode_tcp_handle(in);
  if (!handle.ok()) {
    return;
  }
  auto again = lightcc::encode_tcp_handle(*handle);
  require(again.ok() && std::ranges::equal(*again, in) && in.size() <= 256);
}

void check_hello(std::span<const std::byte> in) {
  auto hello = lightcc::decode_tcp_hello(in);
  if (!hello.ok()) {
    return;
  }
  require(hello->index < hello->count);
  require(hello->count <= lightcc::kMaxConnections);
  require(std::ranges::equal(lightcc::encode_tcp_hello(*hello), in));
}

void check_stripe(std::span<const std::byte> in) {
  if (in.size() < lightcc::kStripeHeaderBytes) {
    return;
  }
  StripeHeaderBytes bytes;
  std::ranges::copy(in.first(bytes.size()), bytes.begin());
  auto header = lightcc::decode_stripe_header(bytes);
  if (!header.ok()) {
    return;
  }
  require(header->length <= lightcc::kStripeBytes);
  require(header->offset <= header->total && header->length <= header->total - header->offset);
  StripeHeaderBytes again;
  lightcc::encode_stripe_header(*header, again);
  require(again == bytes);
  // The receiver's set is sized by its own length: here one that has nothing to do with the header.
  lightcc::PieceSet expected(200);
  const std::uint64_t index = header->offset / lightcc::kStripeBytes;
  require(expected.insert(index) == (index < 200));
  require(!expected.insert(index));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto in = std::as_bytes(std::span(data, size));
  check_handle(in);
  check_hello(in);
  check_stripe(in);
  return 0;
}
