#include "datapath/memory.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace harp {

MemoryNetwork::MemoryNetwork(std::size_t mtu_bytes, std::size_t ring_packets)
    : mtu_bytes_(mtu_bytes), ring_packets_(ring_packets) {}

MemoryNetwork::~MemoryNetwork() {
  for (const Endpoint& endpoint : endpoints_) {
    for (const std::atomic<Ring*>& ring : endpoint.from) {
      delete ring.load();
    }
  }
}

MemoryNetwork::Ring* MemoryNetwork::ring(std::size_t from, std::size_t to) {
  if (to >= kMostEndpoints) {
    return nullptr;
  }
  std::atomic<Ring*>& place = endpoints_[to].from[from];
  Ring* ring = place.load(std::memory_order_acquire);
  if (ring == nullptr) {
    ring = new Ring(ring_packets_);
    place.store(ring, std::memory_order_release);
  }
  return ring;
}

MemoryDatapath::MemoryDatapath(MemoryNetwork& network, std::size_t index)
    : network_(network), index_(index), address_(address_of(index)) {
  arrivals_.reserve(kBurst);
}

Address MemoryDatapath::address_of(std::size_t index) {
  return {.ip = {}, .family = 4, .port = static_cast<std::uint16_t>(index + 1)};
}

void MemoryDatapath::give_back() {
  for (std::size_t peer = 0; peer < taken_.size(); ++peer) {
    if (taken_[peer] > 0) {
      network_.endpoints_[index_].from[peer].load(std::memory_order_acquire)->pop(taken_[peer]);
      taken_[peer] = 0;
    }
  }
}

std::span<const Arrival> MemoryDatapath::receive() {
  give_back();
  arrivals_.clear();
  for (std::size_t peer = 0; peer < taken_.size(); ++peer) {
    auto* const ring = network_.endpoints_[index_].from[peer].load(std::memory_order_acquire);
    while (ring != nullptr && arrivals_.size() < kBurst) {
      const auto* const frame = ring->front(taken_[peer]);
      if (frame == nullptr) {
        break;
      }
      ++taken_[peer];
      arrivals_.push_back({.packet = std::span(frame->bytes).first(frame->len),
                           .route = {address_of(peer), frame->local_port}});
      stats_.bytes_received += frame->len;
    }
  }
  stats_.packets_received += arrivals_.size();
  stats_.batches_received += arrivals_.empty() ? 0 : 1;
  return arrivals_;
}

void MemoryDatapath::send(const Route& route,
                          std::span<const std::byte> head,
                          std::span<const std::byte> payload) {
  const std::size_t peer = route.peer.port - std::size_t{1};
  auto* const ring = network_.ring(index_, peer);
  const std::size_t len = head.size() + payload.size();
  auto* const frame = ring != nullptr && len <= network_.mtu_bytes() ? ring->back() : nullptr;
  if (frame == nullptr) {
    ++stats_.send_errors;  // Lost, as on any network.
    return;
  }
  frame->bytes.resize(network_.mtu_bytes());
  std::ranges::copy(head, frame->bytes.begin());
  std::ranges::copy(payload, frame->bytes.begin() + static_cast<std::ptrdiff_t>(head.size()));
  frame->len = len;
  frame->local_port = route.local_port;
  ring->push();
  peers_to_wake_ |= std::uint64_t{1} << peer;
  ++stats_.packets_sent;
  stats_.bytes_sent += len;
}

bool MemoryDatapath::flush(Time /*now*/) {
  if (peers_to_wake_ == 0) {
    return true;
  }
  ++stats_.batches_sent;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // Packets before the look at the flag.
  for (; peers_to_wake_ != 0; peers_to_wake_ &= peers_to_wake_ - 1) {
    auto& peer = network_.endpoints_[static_cast<std::size_t>(std::countr_zero(peers_to_wake_))];
    if (peer.is_waiting.load(std::memory_order_relaxed) && peer.is_waiting.exchange(false)) {
      peer.event.signal();
    }
  }
  return true;
}

int MemoryDatapath::descriptor() const {
  return network_.endpoints_[index_].event.get();
}

bool MemoryDatapath::anything_there() {
  for (std::size_t peer = 0; peer < taken_.size(); ++peer) {
    auto* const ring = network_.endpoints_[index_].from[peer].load(std::memory_order_acquire);
    if (ring != nullptr && ring->front(taken_[peer]) != nullptr) {
      return true;
    }
  }
  return false;
}

bool MemoryDatapath::prepare_to_wait() {
  auto& self = network_.endpoints_[index_];
  self.event.drain();
  self.is_waiting.store(true);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // The flag before the look at the rings.
  if (!anything_there()) {
    return true;
  }
  self.is_waiting.store(false);
  return false;
}

}  // namespace harp
