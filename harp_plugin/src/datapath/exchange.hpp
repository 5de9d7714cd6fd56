// Packets from thread to thread within a process: a ring for each pair of endpoints, no lock.
//
// One copy per packet, when it is given; who takes it reads the ring in place.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "datapath/datapath.hpp"
#include "datapath/event_fd.hpp"
#include "datapath/frame.hpp"
#include "datapath/port_owners.hpp"
#include "sync/spsc_ring.hpp"

namespace harp {

/// The medium. Outlives its ports.
class PacketExchange {
 public:
  static constexpr std::size_t kMaxPorts = 64;

  /// `ports`: at most kMaxPorts. `ring_packets` is a power of two: what waits between two ports;
  /// more is lost. Throws std::system_error where there is no descriptor left.
  PacketExchange(std::size_t ports, std::size_t packet_bytes, std::size_t ring_packets);
  PacketExchange(const PacketExchange&) = delete;
  PacketExchange& operator=(const PacketExchange&) = delete;
  ~PacketExchange() = default;

  std::size_t packet_bytes() const { return packet_bytes_; }

 private:
  friend class ExchangePort;

  struct Frame {
    Route route;
    std::size_t len = 0;
    std::vector<std::byte> bytes;
  };
  using Ring = SpscRing<Frame>;
  struct Inbox {
    std::atomic<bool> is_waiting{false};
    EventFd event;
    std::array<std::unique_ptr<Ring>, kMaxPorts> rings;  ///< Only the senders look at these.
    std::array<std::atomic<Ring*>, kMaxPorts> from{};    ///< The same, once they are made.
  };

  /// The ring between two ports, made by its sender when it first sends.
  Ring& ring(std::size_t from, std::size_t to);

  std::size_t packet_bytes_;
  std::size_t ring_packets_;
  std::vector<Inbox> inboxes_;
};

/// One end of an exchange. Thread: one at a time.
class ExchangePort {
 public:
  /// `index` is below the number of ports, and used once.
  ExchangePort(PacketExchange& exchange, std::size_t index);

  /// Appends what arrived to `arrivals`, `most` packets at most. The bytes stay until the next
  /// call.
  void take(std::size_t maximum, std::vector<Arrival>& arrivals);

  /// The packet will arrive at port `to` with this route. False: the ring is full, the packet too
  /// long, or there is no such port.
  bool give(std::size_t to,
            const Route& route,
            std::span<const std::byte> head,
            std::span<const std::byte> payload = {});
  /// The same for what deliver() of another engine gave.
  void take_astray(std::size_t maximum, std::vector<Arrival>& arrivals);
  /// A packet that came in a frame: appends it to `arrivals` where `owner` is this port's engine,
  /// else gives it to that engine's port. Counts it.
  void deliver(const FrameView& view,
               const PortOwners::Owner& owner,
               std::vector<Arrival>& arrivals,
               DatapathStats& stats);
  /// Wakes whoever was given a packet and waits. Whether there was anybody to look at.
  bool wake_takers();

  /// Readable once a packet has come, if prepare_to_wait() returned true before.
  int descriptor() const { return inbox().event.get(); }
  /// False: packets are there already.
  bool prepare_to_wait();

 private:
  PacketExchange::Inbox& inbox() const { return exchange_.inboxes_[index_]; }
  void give_back();
  bool anything_there();

  PacketExchange& exchange_;
  std::size_t index_;
  std::uint64_t takers_ = 0;  ///< Ports that were given something since wake_takers().
  std::array<std::size_t, PacketExchange::kMaxPorts> taken_{};
};

}  // namespace harp
