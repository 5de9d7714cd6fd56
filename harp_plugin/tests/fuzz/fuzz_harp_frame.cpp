// The parsers of Ethernet, IP, UDP and ARP headers against arbitrary bytes. What they accept is
// written again, and must be accepted again, with the same ends and payload.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "datapath/arp.hpp"
#include "datapath/frame.hpp"

namespace {

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto in = std::as_bytes(std::span(data, size));
  if (const auto arp = harp::parse_arp(in)) {
    require(harp::parse_arp(harp::encode_arp(*arp, {})) == arp);
  }
  const auto view = harp::parse_frame(in);
  if (!view) {
    return 0;
  }
  const std::size_t header = harp::frame_header_bytes(view->source().family);
  require(header + view->payload.size() <= size);
  require(view->payload.data() == in.data() + header);
  std::vector<std::byte> frame(header + view->payload.size());
  std::ranges::copy(view->payload, frame.begin() + static_cast<std::ptrdiff_t>(header));
  harp::write_frame_headers({.source_mac = {},
                             .destination_mac = {},
                             .source = view->source(),
                             .destination = view->destination()},
                            frame);
  const auto again = harp::parse_frame(frame);
  require(again && again->source() == view->source() &&
          again->destination() == view->destination());
  require(std::ranges::equal(again->payload, view->payload));
  return 0;
}
