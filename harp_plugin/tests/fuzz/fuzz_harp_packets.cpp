// Every parser of packets and their bodies, and the connect handle, against arbitrary bytes. What
// is accepted is encoded again, and must give the bytes that it came from.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/ack_body.hpp"
#include "protocol/auth.hpp"
#include "protocol/handle.hpp"
#include "protocol/handshake.hpp"
#include "protocol/listener.hpp"
#include "protocol/packet.hpp"

namespace {

using namespace harp;  // NOLINT(google-build-using-namespace): a fuzzer is about nothing else.

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

void require_same(std::span<const std::byte> body, std::span<const std::byte> again) {
  require(std::equal(body.begin(), body.end(), again.begin(), again.end()));
}

void check_bodies(std::span<const std::byte> body) {
  std::vector<std::byte> out(kMaxAckBytes);
  const auto written = [&out](std::size_t bytes) { return std::span(out).first(bytes); };
  if (const auto ack = parse_ack(body)) {
    require_same(body, written(encode_ack(*ack, out)));
  }
  if (const auto syn = parse_syn(body)) {
    require_same(body, written(encode_syn(*syn, out)));
  }
  if (const auto syn_ack = parse_syn_ack(body)) {
    require_same(body, written(encode_syn_ack(*syn_ack, out)));
  }
  if (const auto conf = parse_conf(body)) {
    require_same(body, written(encode_conf(*conf, out)));
  }
  if (const auto echo = parse_echo(body)) {
    require_same(body, written(encode_echo(*echo, out)));
  }
  if (const auto reason = parse_reset(body)) {
    require(encode_reset(*reason, out) == body.size());
  }
  if (const auto handle = parse_handle(body)) {
    const auto again = encode_handle(*handle);
    require_same(body.first(again.size()), again);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto in = std::as_bytes(std::span(data, size));
  check_bodies(in);
  const Listener listener(1, Secret{}, 1);
  (void)listener.on_packet(in);
  const auto view = parse_packet(in);
  if (!view) {
    return 0;
  }
  require(view->body.size() == view->header.len);
  require(view->body.size() + kHeaderBytes <= in.size());
  std::array<std::byte, kHeaderBytes> head{};
  encode_header(view->header, head);
  require_same(in.first(kHeaderBytes), head);
  (void)is_authentic(Key{}, *view);
  check_bodies(view->body);
  return 0;
}
