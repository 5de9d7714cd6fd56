// What libharp-dpdk.so offers. It is a library of its own, which HARP opens when it is asked for
// DPDK: without it, HARP needs no DPDK. Both are of one build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "datapath/address.hpp"
#include "datapath/datapath.hpp"

namespace harp {

struct DpdkPortOptions {
  std::string device;  ///< A PCI address, or a virtual device with its arguments.
  Address address;     ///< IPv4, this end's; nobody else on this host has it.
  unsigned prefix = 24;
  std::optional<Address> gateway;
  std::size_t mtu_bytes = 1500;
  std::size_t engines = 1;
  std::uint16_t local_ports = 8;  ///< Each engine has so many.
};

/// A NIC that belongs to this process, to its end.
class DpdkPort {
 public:
  DpdkPort() = default;
  DpdkPort(const DpdkPort&) = delete;
  DpdkPort& operator=(const DpdkPort&) = delete;
  virtual ~DpdkPort() = default;

  /// The datapath of one engine; each may exist once. It must not outlive the port.
  virtual std::unique_ptr<Datapath> open_engine(std::size_t engine) = 0;
};

/// `harp_dpdk_open_port` of the library. Null, and `error` says why, where DPDK refuses. The EAL
/// starts with the first port. Thread: one at a time.
using OpenDpdkPort = DpdkPort* (*)(const DpdkPortOptions& options, std::string* error);

}  // namespace harp
