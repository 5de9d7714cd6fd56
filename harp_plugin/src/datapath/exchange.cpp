#include "datapath/exchange.hpp"

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.hpp"
#include "datapath/datapath.hpp"

namespace harp {

PacketExchange::PacketExchange(std::size_t ports,
                               std::size_t packet_bytes,
                               std::size_t ring_packets)
    : packet_bytes_(packet_bytes), ring_packets_(ring_packets), inboxes_(ports) {}

PacketExchange::Ring& PacketExchange::ring(std::size_t from, std::size_t to) {
  Inbox& inbox = inboxes_[to];
  std::unique_ptr<Ring>& own = inbox.rings[from];
  if (own == nullptr) {
    own = std::make_unique<Ring>(ring_packets_);
    inbox.from[from].store(own.get(), std::memory_order_release);
  }
  return *own;
}

ExchangePort::ExchangePort(PacketExchange& exchange, std::size_t index)
    : exchange_(exchange), index_(index) {}

void ExchangePort::give_back() {
  for (std::size_t peer = 0; peer < exchange_.inboxes_.size(); ++peer) {
    if (taken_[peer] > 0) {
      inbox().from[peer].load(std::memory_order_acquire)->pop(taken_[peer]);
      taken_[peer] = 0;
    }
  }
}

void ExchangePort::take(std::size_t maximum, std::vector<Arrival>& arrivals) {
  give_back();
  std::size_t count = 0;
  for (std::size_t peer = 0; peer < exchange_.inboxes_.size(); ++peer) {
    auto* const ring = inbox().from[peer].load(std::memory_order_acquire);
    while (ring != nullptr && count < maximum) {
      const auto* const frame = ring->front(taken_[peer]);
      if (frame == nullptr) {
        break;
      }
      ++taken_[peer];
      ++count;
      arrivals.push_back(
          {.packet = std::span(frame->bytes).first(frame->len), .route = frame->route});
    }
  }
}

void ExchangePort::take_astray(std::size_t maximum, std::vector<Arrival>& arrivals) {
  const std::size_t before = arrivals.size();
  take(maximum, arrivals);
  for (Arrival& arrival : std::span(arrivals).subspan(before)) {
    arrival.is_astray = true;
  }
}

bool ExchangePort::give(std::size_t to,
                        const Route& route,
                        std::span<const std::byte> head,
                        std::span<const std::byte> payload) {
  const std::size_t len = head.size() + payload.size();
  if (to >= exchange_.inboxes_.size() || len > exchange_.packet_bytes()) {
    return false;
  }
  auto& ring = exchange_.ring(index_, to);
  auto* const frame = ring.back();
  if (frame == nullptr) {
    return false;
  }
  frame->bytes.resize(exchange_.packet_bytes());
  copy_bytes(payload, copy_bytes(head, frame->bytes));
  frame->len = len;
  frame->route = route;
  ring.push();
  takers_ |= std::uint64_t{1} << to;
  return true;
}

void ExchangePort::deliver(const FrameView& view,
                           const PortOwners::Owner& owner,
                           std::vector<Arrival>& arrivals,
                           DatapathStats& stats) {  // hot
  ++stats.packets_received;
  stats.bytes_received += view.payload.size();
  if (owner.engine == index_) {
    Arrival& arrival = arrivals.emplace_back();
    arrival.packet = view.payload;
    arrival.route.peer = view.source();
    arrival.route.local_port = owner.local_port;
  } else if (give(owner.engine,
                  {.peer = view.source(), .local_port = owner.local_port},
                  view.payload)) {
    ++stats.handed_over;
    stats.bytes_copied_in += view.payload.size();
  }
}

bool ExchangePort::wake_takers() {
  if (takers_ == 0) {
    return false;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // Packets before the look at the flag.
  for (; takers_ != 0; takers_ &= takers_ - 1) {
    auto& taker = exchange_.inboxes_[static_cast<std::size_t>(std::countr_zero(takers_))];
    if (taker.is_waiting.load(std::memory_order_relaxed) && taker.is_waiting.exchange(false)) {
      taker.event.signal();
    }
  }
  return true;
}

bool ExchangePort::anything_there() {
  for (std::size_t peer = 0; peer < exchange_.inboxes_.size(); ++peer) {
    auto* const ring = inbox().from[peer].load(std::memory_order_acquire);
    if (ring != nullptr && ring->front(taken_[peer]) != nullptr) {
      return true;
    }
  }
  return false;
}

bool ExchangePort::prepare_to_wait() {
  inbox().event.drain();
  inbox().is_waiting.store(true);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // The flag before the look at the rings.
  if (!anything_there()) {
    return true;
  }
  inbox().is_waiting.store(false);
  return false;
}

}  // namespace harp
