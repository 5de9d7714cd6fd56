#include "shape.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>

#include "protocol/handshake.hpp"
#include "protocol/pacer.hpp"
#include "protocol/packet.hpp"

namespace harp_cycles {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{64} << 10;
/// Two thirds of what a stack lets be in flight at MTU 8500, where that is least.
constexpr std::size_t kMaxBatchBytes = std::size_t{3} << 20;
/// One is cut, one is under way, one waits for its acknowledgement, and one is behind them.
constexpr std::size_t kMinOutstanding = 4;

}  // namespace

std::size_t Shape::ring_packets() const {
  // The last burst may be too much, and what a stack has taken last is still in the ring.
  return std::bit_ceil(batch_packets + burst_packets / 2 +
                       std::min(kMaxTakenPackets, batch_packets));
}

std::size_t l2_bytes() {
  const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : std::size_t{1} << 20;
}

Shape hot_shape(std::size_t mtu_bytes) {
  Shape shape{.mtu_bytes = mtu_bytes, .pss = harp::pss_for_mtu(mtu_bytes)};
  harp::Pacer pacer;
  pacer.set_rate(kBytesPerS, shape.packet_bytes());
  shape.burst_packets = static_cast<std::size_t>(pacer.burst_packets());
  shape.batch_packets = shape.burst_packets;
  shape.message_packets = kMessageBytes / shape.pss;
  shape.outstanding = kMinOutstanding;
  shape.destinations = kMinOutstanding;
  return shape;
}

Shape cold_shape(std::size_t mtu_bytes, std::size_t bytes) {
  Shape shape = hot_shape(mtu_bytes);
  const std::size_t batch_bytes = std::min(bytes / 2, kMaxBatchBytes);
  const std::size_t bursts = batch_bytes / shape.pss / shape.burst_packets;
  shape.batch_packets = std::max<std::size_t>(bursts, 1) * shape.burst_packets;
  shape.outstanding += shape.batch_packets / shape.message_packets;
  shape.sources = std::max(bytes / shape.message_bytes(), shape.outstanding);
  shape.destinations = shape.sources;
  return shape;
}

}  // namespace harp_cycles
