// What carries packets: the contract between a stack and a NIC, a socket, or memory.
//
// Packets are moved in bursts. A datapath belongs to one stack and is used by one thread at a time;
// nothing here blocks. Packets may be lost, doubled, and delivered in any order; the protocol
// expects all of that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/time.hpp"
#include "datapath/address.hpp"

namespace harp {

/// The way to one peer on one path: the network sees the pair of a local port and the peer's
/// address as one flow.
struct Route {
  Address peer;
  std::uint16_t local_port = 0;  ///< Index of one of Datapath::local_ports().
  bool operator==(const Route&) const = default;
};

struct Arrival {
  std::span<const std::byte> packet;
  Route route;             ///< An answer that takes it belongs to the same flow.
  bool is_astray = false;  ///< It came to the queue of another engine than that of its port.
  Duration waited{};       ///< Since it came to this host, as far as that is known.
};

struct DatapathStats {
  std::uint64_t packets_sent = 0;
  std::uint64_t packets_received = 0;
  std::uint64_t bytes_sent = 0;  ///< Headers included.
  std::uint64_t bytes_received = 0;
  std::uint64_t batches_sent = 0;  ///< Calls, or frames on a ring, that carried them.
  std::uint64_t batches_received = 0;
  std::uint64_t blocked = 0;      ///< Times that the layer below took nothing.
  std::uint64_t send_errors = 0;  ///< Packets that the layer below refused, for good.
  std::uint64_t handed_over = 0;  ///< Packets that came to another stack than their own.
  /// HARP itself copied them: a kernel's and a driver's copies, and placement, do not count.
  std::uint64_t bytes_copied_out = 0;  ///< They are payloads.
  std::uint64_t bytes_copied_in = 0;   ///< They are packets.
};

class Datapath {
 public:
  Datapath() = default;
  Datapath(const Datapath&) = delete;
  Datapath& operator=(const Datapath&) = delete;
  virtual ~Datapath() = default;

  /// Where peers send to.
  virtual const Address& address() const = 0;
  /// Largest IP packet.
  virtual std::size_t mtu_bytes() const = 0;
  /// Flows that it can make towards one peer.
  virtual std::uint16_t local_ports() const = 0;
  /// The kernel or the NIC puts a checksum over each packet, which the other end verifies; else
  /// sessions carry one of their own.
  virtual bool has_checksum() const = 0;

  /// What arrives while nobody calls receive() is kept up to so much payload, in the unlikeliest
  /// case; 0: not known.
  virtual std::size_t buffer_bytes() const { return 0; }

  /// What arrived; at most a burst. The bytes stay until the next call.
  virtual std::span<const Arrival> receive() = 0;

  /// Packets that send() takes before the next flush().
  virtual std::size_t room() const = 0;
  /// Takes a packet, while there is room. `head` is copied, `payload` stays the caller's and is
  /// read until a flush() has returned true; in registered memory, perhaps later, too.
  virtual void send(const Route& route,
                    std::span<const std::byte> head,
                    std::span<const std::byte> payload) = 0;
  /// Hands over what send() took. False: some of it still waits, because the layer below is full.
  virtual bool flush(Time now) = 0;
  /// Forgets what still waits; its payloads are not read any more. They count as lost.
  virtual void discard() = 0;

  /// Whether the two below do anything.
  virtual bool registers_memory() const { return false; }
  /// Payloads in `memory` may be read where they lie until deregister_memory(), also after a
  /// flush(). False: they are copied, as all others.
  virtual bool register_memory(std::span<const std::byte> /*memory*/) { return false; }
  virtual void deregister_memory(std::span<const std::byte> /*memory*/) {}

  /// When flush() has something to do by itself.
  virtual Time next_deadline() const { return kNever; }

  /// Becomes readable when packets arrive, once prepare_to_wait() was called and returned true.
  virtual int descriptor() const = 0;
  /// False: packets are there already.
  virtual bool prepare_to_wait() { return true; }

  virtual DatapathStats stats() const = 0;
};

}  // namespace harp
