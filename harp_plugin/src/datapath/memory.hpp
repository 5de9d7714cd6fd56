// Packets between stacks of one process: a ring for each pair of endpoints, no lock.
//
// For tests, and for measuring a stack without a kernel: what a packet costs here is what the
// protocol costs. One copy per packet, on transmit; the receiver reads the ring in place.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/time.hpp"
#include "datapath/datapath.hpp"
#include "datapath/event_fd.hpp"
#include "sync/spsc_ring.hpp"

namespace harp {

/// The medium. Outlives its datapaths.
class MemoryNetwork {
 public:
  static constexpr std::size_t kMostEndpoints = 32;

  /// `ring_packets` is a power of two: what waits between two endpoints; more is lost.
  explicit MemoryNetwork(std::size_t mtu_bytes = 1500, std::size_t ring_packets = 1024);
  MemoryNetwork(const MemoryNetwork&) = delete;
  MemoryNetwork& operator=(const MemoryNetwork&) = delete;
  ~MemoryNetwork();

  std::size_t mtu_bytes() const { return mtu_bytes_; }

 private:
  friend class MemoryDatapath;

  struct Frame {
    std::uint16_t local_port = 0;
    std::size_t len = 0;
    std::vector<std::byte> bytes;
  };
  using Ring = SpscRing<Frame>;
  struct Endpoint {
    std::atomic<bool> is_waiting{false};
    EventFd event;
    std::array<std::atomic<Ring*>, kMostEndpoints> from{};
  };

  /// The ring between two endpoints, made by its sender when it first sends. Null: no such peer.
  Ring* ring(std::size_t from, std::size_t to);

  std::size_t mtu_bytes_;
  std::size_t ring_packets_;
  std::array<Endpoint, kMostEndpoints> endpoints_;
};

class MemoryDatapath final : public Datapath {
 public:
  /// The endpoint `index` of `network`; each may exist once.
  MemoryDatapath(MemoryNetwork& network, std::size_t index);

  /// Where endpoint `index` is.
  static Address address_of(std::size_t index);

  const Address& address() const override { return address_; }
  std::size_t mtu_bytes() const override { return network_.mtu_bytes(); }
  std::uint16_t local_ports() const override { return 64; }
  std::span<const Arrival> receive() override;
  std::size_t room() const override { return kBurst; }
  void send(const Route& route,
            std::span<const std::byte> head,
            std::span<const std::byte> payload) override;
  bool flush(Time now) override;
  void discard() override {}
  int descriptor() const override;
  bool prepare_to_wait() override;
  const DatapathStats& stats() const override { return stats_; }

 private:
  static constexpr std::size_t kBurst = 64;

  void give_back();
  bool anything_there();

  MemoryNetwork& network_;
  std::size_t index_;
  Address address_;
  std::uint64_t peers_to_wake_ = 0;
  std::vector<Arrival> arrivals_;
  std::array<std::size_t, MemoryNetwork::kMostEndpoints> taken_{};
  DatapathStats stats_;
};

}  // namespace harp
