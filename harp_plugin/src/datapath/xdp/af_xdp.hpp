// AF_XDP sockets: packets of HARP leave and reach an interface past the kernel's IP stack, while
// the kernel keeps the interface and all other traffic.
//
// An engine has the queues q of the interface for which q modulo the number of engines is its own
// number, so that every queue has an owner. A NIC chooses queues by hashing, and so a packet may
// come to a queue that is not its session's engine's: that engine hands it over by a ring. Two
// ports of different engines never meet in another way.
//
// Beside each engine's rings stand UDP sockets with the same ports. They keep the ports from
// others, and carry what the rings cannot: peers on this host, peers whose neighbour entry the
// kernel has yet to find, fragments and packets with VLAN tags or IP options. To the peer there is
// no difference, so that an AF_XDP end and a UDP end understand one another.
//
// Copies per byte: transmit 1, into a frame, and 1 of the kernel's in copy mode; receive 0, and 1
// of the kernel's in copy mode, 1 where a frame came in pieces (MTU above 3498), 1 at a hand-over;
// besides that of the placement.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/time.hpp"
#include "datapath/datapath.hpp"
#include "datapath/exchange.hpp"
#include "datapath/frame.hpp"
#include "datapath/next_hops.hpp"
#include "datapath/port_owners.hpp"
#include "datapath/udp.hpp"
#include "datapath/unique_fd.hpp"
#include "datapath/xdp/bpf_program.hpp"
#include "datapath/xdp/xsk.hpp"

namespace harp {

struct AfXdpOptions {
  std::string interface;
  UdpOptions sockets;       ///< Each engine's; at the interface's address, port 0.
  std::size_t engines = 1;  ///< At most one per queue.
};

/// An interface that hands packets to this process. Thread: any.
class AfXdpDevice : public std::enable_shared_from_this<AfXdpDevice> {
 public:
  /// Null, and `error` says why, where the kernel refuses or has too few queues.
  static std::shared_ptr<AfXdpDevice> open(const AfXdpOptions& options, std::string* error);

  /// The datapath of one engine, which keeps the device open. Each may exist once.
  std::unique_ptr<Datapath> open_engine(std::size_t engine, std::string* error);

  std::size_t mtu_bytes() const { return options_.sockets.mtu_bytes; }

 private:
  friend class AfXdpDatapath;

  explicit AfXdpDevice(const AfXdpOptions& options);
  std::string set_up();

  AfXdpOptions options_;
  Link link_;
  std::size_t queues_ = 1;
  std::unique_ptr<BpfProgram> program_;
  PacketExchange exchange_;
  PortOwners owners_;
};

class AfXdpDatapath final : public Datapath {
 public:
  AfXdpDatapath(std::shared_ptr<AfXdpDevice> device, std::size_t engine);
  AfXdpDatapath(const AfXdpDatapath&) = delete;
  AfXdpDatapath& operator=(const AfXdpDatapath&) = delete;
  ~AfXdpDatapath() override;
  /// Says what went wrong, or nothing.
  std::string set_up();

  const Address& address() const override { return sockets_->address(); }
  std::size_t mtu_bytes() const override { return device_->mtu_bytes(); }
  std::uint16_t local_ports() const override { return sockets_->local_ports(); }
  bool has_checksum() const override { return false; }
  std::span<const Arrival> receive() override;
  std::size_t room() const override;
  void send(const Route& route,
            std::span<const std::byte> head,
            std::span<const std::byte> payload) override;
  bool flush(Time now) override;
  void discard() override { sockets_->discard(); }
  Time next_deadline() const override;
  int descriptor() const override { return poll_.get(); }
  bool prepare_to_wait() override;
  DatapathStats stats() const override;

 private:
  std::string open_queue(std::uint32_t queue);
  bool watch(int descriptor);
  void take_frame(std::span<const std::byte> frame);

  std::shared_ptr<AfXdpDevice> device_;
  std::size_t engine_;
  std::unique_ptr<UdpDatapath> sockets_;
  std::unique_ptr<NextHops> next_hops_;
  std::vector<std::unique_ptr<Xsk>> queues_;  ///< The first one sends.
  ExchangePort hand_over_;
  UniqueFd poll_;
  std::vector<Arrival> arrivals_;
  int turns_without_sockets_ = 0;
  Time now_{};
  Time retry_at_ = kNever;
  DatapathStats stats_;
};

}  // namespace harp
