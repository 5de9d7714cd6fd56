// A NIC that belongs to HARP, and the datapaths of its engines.
//
// There is no kernel beside it: HARP answers ARP itself, and drops what is neither ARP nor its own.
// Engines have a queue each; the NIC chooses queues by hashing (RSS), and a packet that comes to
// another engine's queue is handed over by a ring.
//
// Copies per byte: transmit none from registered memory that the NIC reads in place, else 1, into a
// buffer of the NIC; receive 0, 1 at a hand-over; besides that of the placement.
#pragma once

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/time.hpp"
#include "datapath/arp.hpp"
#include "datapath/datapath.hpp"
#include "datapath/dpdk_api.hpp"
#include "datapath/exchange.hpp"
#include "datapath/frame.hpp"
#include "datapath/port_owners.hpp"
#include "registered_memory.hpp"

namespace harp::dpdk {

/// Packets moved at once.
inline constexpr std::uint16_t kBurst = 128;

class Port final : public DpdkPort {
 public:
  /// Null, and `error` says why.
  static std::unique_ptr<Port> open(const DpdkPortOptions& options, std::string* error);
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  ~Port() override;

  std::unique_ptr<Datapath> open_engine(std::size_t engine) override;

 private:
  friend class PortDatapath;

  explicit Port(const DpdkPortOptions& options);
  std::string set_up();
  std::string start();
  std::string make_pools(unsigned buffers);

  DpdkPortOptions options_;
  std::uint16_t id_ = 0;
  rte_device* device_ = nullptr;
  std::uint16_t first_udp_port_;
  rte_mempool* pool_ = nullptr;
  rte_mempool* pointers_ = nullptr;  ///< Buffers without room, to point to registered memory.
  std::optional<DmaPages> pages_;
  bool nic_makes_sums_ = false;  ///< It completes UDP checksums.
  ArpTable::Self self_;
  PortOwners owners_;
  PacketExchange exchange_;
};

class PortDatapath final : public Datapath {
 public:
  PortDatapath(Port& port, std::size_t engine);
  PortDatapath(const PortDatapath&) = delete;
  PortDatapath& operator=(const PortDatapath&) = delete;
  ~PortDatapath() override;

  const Address& address() const override { return address_; }
  std::size_t mtu_bytes() const override { return port_.options_.mtu_bytes; }
  std::uint16_t local_ports() const override { return port_.options_.local_ports; }
  bool has_checksum() const override { return port_.nic_makes_sums_; }
  std::span<const Arrival> receive() override;
  std::size_t room() const override { return kBurst - queued_; }
  void send(const Route& route,
            std::span<const std::byte> head,
            std::span<const std::byte> payload) override;
  bool flush(Time now) override;
  void discard() override;
  bool registers_memory() const override { return true; }
  bool register_memory(std::span<const std::byte> memory) override;
  void deregister_memory(std::span<const std::byte> memory) override;
  /// The NIC does not tell when packets come.
  Time next_deadline() const override { return now_ + (is_busy_ ? kBusyPoll : kIdlePoll); }
  int descriptor() const override { return hand_over_.descriptor(); }
  bool prepare_to_wait() override { return hand_over_.prepare_to_wait(); }
  DatapathStats stats() const override { return stats_; }

 private:
  static constexpr Duration kBusyPoll = std::chrono::microseconds(100);
  static constexpr Duration kIdlePoll = std::chrono::milliseconds(1);

  void take_frame(std::span<const std::byte> frame, bool is_verified);
  rte_mbuf* allocate(std::size_t bytes);
  bool point_to(std::span<const std::byte> payload, rte_mbuf& packet);
  void take_other(std::span<const std::byte> frame);
  void send_arp(const ArpFrame& frame);
  void transmit();
  void give_back();

  Port& port_;
  std::size_t engine_;
  Address address_;
  std::vector<Address> sources_;  ///< There is one for each local port.
  ArpTable neighbours_;
  ExchangePort hand_over_;
  RegisteredMemory registered_;
  std::vector<Arrival> arrivals_;
  std::array<rte_mbuf*, kBurst> received_{};
  std::uint16_t received_count_ = 0;
  std::array<rte_mbuf*, kBurst> queue_{};
  std::uint16_t queued_ = 0;
  std::array<rte_mbuf*, kBurst> fresh_{};  ///< Sends fill them.
  std::uint16_t fresh_count_ = 0;
  Time now_{};
  Time heard_at_{};
  bool is_busy_ = true;  ///< Something came not long ago.
  DatapathStats stats_;
};

}  // namespace harp::dpdk
