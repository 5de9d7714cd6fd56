#include "datapath/memory.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

#include "datapath/datapath.hpp"

namespace harp {

MemoryDatapath::MemoryDatapath(MemoryNetwork& network, std::size_t index)
    : port_(network.exchange_, index),
      mtu_bytes_(network.mtu_bytes()),
      address_(address_of(index)) {
  arrivals_.reserve(kBurst);
}

Address MemoryDatapath::address_of(std::size_t index) {
  const auto number = static_cast<std::uint8_t>(index + 1);
  return {.ip = {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{number}},
          .family = 4,
          .port = number};
}

std::span<const Arrival> MemoryDatapath::receive() {
  arrivals_.clear();
  port_.take(kBurst, arrivals_);
  for (const Arrival& arrival : arrivals_) {
    stats_.bytes_received += arrival.packet.size();
  }
  stats_.packets_received += arrivals_.size();
  stats_.batches_received += arrivals_.empty() ? 0 : 1;
  return arrivals_;
}

void MemoryDatapath::send(const Route& route,
                          std::span<const std::byte> head,
                          std::span<const std::byte> payload) {
  const std::size_t peer = route.peer.port - std::size_t{1};
  if (!port_.give(peer, {.peer = address_, .local_port = route.local_port}, head, payload)) {
    ++stats_.send_errors;  // Lost, as on any network.
    return;
  }
  ++stats_.packets_sent;
  stats_.bytes_sent += head.size() + payload.size();
  stats_.bytes_copied_out += payload.size();
}

bool MemoryDatapath::flush(Time /*now*/) {
  stats_.batches_sent += port_.wake_takers() ? 1 : 0;
  return true;
}

}  // namespace harp
