// The store protocol's decoders against arbitrary bytes; what they accept must survive a round
// trip.
//
// First byte: even: a request's body, odd: an answer's. The same bytes are tried as a frame's head
// and as a failure.
#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/wire/store_messages.hpp"

namespace {

using lightcc::Bytes;
using lightcc::kStoreFrameHeadBytes;

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

std::span<const std::byte> body_of(const Bytes& frame) {
  const auto head = std::span(frame).first(kStoreFrameHeadBytes);
  const auto body_bytes = lightcc::decode_store_body_bytes(head);
  require(body_bytes.ok() && body_bytes.value() == frame.size() - kStoreFrameHeadBytes);
  return std::span(frame).subspan(kStoreFrameHeadBytes);
}

void check_request(std::span<const std::byte> body) {
  const auto request = lightcc::decode_store_request(body);
  if (!request.ok()) {
    return;
  }
  require(lightcc::check_store_key(request->key).ok());
  require(lightcc::check_store_value(request->value.size()).ok());
  require(!request->expected.has_value() ||
          lightcc::check_store_compare(request->expected->size()).ok());
  Bytes frame;
  lightcc::encode_store_request(request.value(), frame);
  const auto again = lightcc::decode_store_request(body_of(frame));
  require(again.ok() && again.value() == request.value());
}

void check_answer(std::span<const std::byte> body) {
  const auto answer = lightcc::decode_store_answer(body);
  if (!answer.ok()) {
    return;
  }
  Bytes frame;
  lightcc::encode_store_answer(answer.value(), frame);
  const auto again = lightcc::decode_store_answer(body_of(frame));
  require(again.ok() && again.value() == answer.value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto body = std::as_bytes(std::span(data, size)).subspan(1);
  const auto body_bytes = lightcc::decode_store_body_bytes(body);
  require(!body_bytes.ok() ||
          (body_bytes.value() > 0 && body_bytes.value() <= lightcc::kMaxStoreBodyBytes));
  const auto failure = lightcc::decode_failure(body);
  require(!failure.ok());
  const auto again = lightcc::decode_failure(lightcc::encode_failure(failure));
  require(again.code() == failure.code() && again.rank() == failure.rank() &&
          again.message() == failure.message());
  if (data[0] % 2 == 0) {
    check_request(body);
  } else {
    check_answer(body);
  }
  return 0;
}
