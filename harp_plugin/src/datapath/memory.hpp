// Packets between stacks of one process.
//
// For tests, and for measuring a stack without a kernel: what a packet costs here is what the
// protocol costs. One copy per packet, on transmit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/time.hpp"
#include "datapath/datapath.hpp"
#include "datapath/exchange.hpp"

namespace harp {

/// The medium. Outlives its datapaths.
class MemoryNetwork {
 public:
  static constexpr std::size_t kMaxEndpoints = PacketExchange::kMaxPorts;

  /// `ring_packets` is a power of two: what waits between two endpoints; more is lost.
  explicit MemoryNetwork(std::size_t mtu_bytes = 1500, std::size_t ring_packets = 1024)
      : exchange_(kMaxEndpoints, mtu_bytes, ring_packets) {}

  std::size_t mtu_bytes() const { return exchange_.packet_bytes(); }

 private:
  friend class MemoryDatapath;

  PacketExchange exchange_;
};

class MemoryDatapath final : public Datapath {
 public:
  /// The endpoint `index` of `network`; each may exist once.
  MemoryDatapath(MemoryNetwork& network, std::size_t index);

  /// Where endpoint `index` is: each is a host of its own.
  static Address address_of(std::size_t index);

  const Address& address() const override { return address_; }
  std::size_t mtu_bytes() const override { return mtu_bytes_; }
  std::uint16_t local_ports() const override { return 64; }
  bool has_checksum() const override { return false; }
  std::span<const Arrival> receive() override;
  std::size_t room() const override { return kBurst; }
  void send(const Route& route,
            std::span<const std::byte> head,
            std::span<const std::byte> payload) override;
  bool flush(Time now) override;
  void discard() override {}
  int descriptor() const override { return port_.descriptor(); }
  bool prepare_to_wait() override { return port_.prepare_to_wait(); }
  DatapathStats stats() const override { return stats_; }

 private:
  static constexpr std::size_t kBurst = 64;

  ExchangePort port_;
  std::size_t mtu_bytes_;
  Address address_;
  std::vector<Arrival> arrivals_;
  DatapathStats stats_;
};

}  // namespace harp
