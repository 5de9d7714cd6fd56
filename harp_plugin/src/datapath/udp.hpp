// UDP sockets: no privilege, works everywhere.
//
// One socket per local port. Peers send to the first one; the others are the source ports of this
// end's paths, and receive the answers, so that every flow is one that this end began, which is
// what stateful firewalls let through.
//
// Packets of one route leave as one segmented send (UDP_SEGMENT, Linux 4.18), up to 64 at a time,
// and arrive as one coalesced receive (UDP_GRO, 5.0): the kernel's cost per packet becomes one per
// batch. Where either is missing they travel one by one. Fragmentation is off: a packet that is too
// large for the path vanishes, which is how the handshake finds out.
//
// Copies per byte: 1 on transmit (user to kernel), 1 on receive besides that of the placement.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/time.hpp"
#include "datapath/datapath.hpp"
#include "datapath/unique_fd.hpp"

namespace harp {

struct UdpOptions {
  Address local;  ///< The port of the first socket; 0: any.
  std::uint16_t local_ports = 8;
  std::size_t mtu_bytes = 1500;                     ///< The interface's.
  std::size_t buffer_bytes = std::size_t{8} << 20;  ///< Per socket and direction; what is allowed.
  bool segment = true;                              ///< UDP_SEGMENT and UDP_GRO, where there.
};

class UdpDatapath final : public Datapath {
 public:
  /// Null, and `error` says why, where a socket cannot be made or bound.
  static std::unique_ptr<UdpDatapath> open(const UdpOptions& options, std::string* error);
  ~UdpDatapath() override;

  const Address& address() const override { return address_; }
  std::size_t mtu_bytes() const override { return mtu_bytes_; }
  std::uint16_t local_ports() const override { return static_cast<std::uint16_t>(sockets_.size()); }
  bool has_checksum() const override { return true; }
  /// What one socket holds.
  std::size_t buffer_bytes() const override { return buffer_bytes_; }
  /// The port of the socket `local_port`, as in Route.
  std::uint16_t port(std::uint16_t local_port) const { return ports_[local_port % ports_.size()]; }
  std::span<const Arrival> receive() override;
  std::size_t room() const override;
  void send(const Route& route,
            std::span<const std::byte> head,
            std::span<const std::byte> payload) override;
  bool flush(Time now) override;
  void discard() override;
  Time next_deadline() const override { return retry_at_; }
  int descriptor() const override { return poll_.get(); }
  DatapathStats stats() const override { return stats_; }
  bool is_segmenting() const { return segment_; }

 private:
  struct Batches;  // What the system calls need; in the source, for its headers.

  explicit UdpDatapath(const UdpOptions& options);
  std::string open_socket(const UdpOptions& options, std::size_t index);
  std::size_t receive_from(std::size_t socket);
  void split(std::size_t message, std::size_t socket, Duration now);
  std::size_t batch_end(std::size_t first);
  void build_message(std::size_t message, std::size_t first, std::size_t end);
  std::size_t build_messages(std::size_t first);
  void on_refused(int error, std::size_t packets);

  Address address_;
  std::size_t mtu_bytes_;
  bool segment_;
  std::size_t buffer_bytes_ = 0;
  std::vector<UniqueFd> sockets_;
  std::vector<std::uint16_t> ports_;
  UniqueFd poll_;
  std::unique_ptr<Batches> batches_;
  std::vector<Arrival> arrivals_;
  std::size_t queued_ = 0;       ///< Packets that send() took.
  std::size_t sent_ = 0;         ///< The kernel has so many of them.
  std::size_t alone_until_ = 0;  ///< Those before it leave one by one: together they were refused.
  Time retry_at_ = kNever;
  DatapathStats stats_;
};

}  // namespace harp
