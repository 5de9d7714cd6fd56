// The XDP program that takes HARP's packets off an interface, and its maps (bpf(2), without
// libbpf).
//
// It redirects UDP packets to one address, with a destination port that is in its table, to the
// AF_XDP socket of the queue on which they arrived. Everything else, and what arrives where there
// is no such socket, goes to the kernel as ever. The interface is itself again when the last
// descriptor is closed, that is, when the process has ended, however it did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "datapath/address.hpp"
#include "datapath/unique_fd.hpp"

namespace harp {

struct BpfOptions {
  std::string interface;
  int interface_index = 0;
  Address address;            ///< Packets to it are taken, whatever their port.
  std::size_t mtu_bytes = 0;  ///< Longer packets are the kernel's: it had not cut them up yet.
  bool has_pieces = false;    ///< Packets may lie in several buffers (Linux 5.18).
};

/// Thread: any.
class BpfProgram {
 public:
  /// Null, and `error` says why, where the kernel refuses: privilege, another program that is
  /// there.
  static std::unique_ptr<BpfProgram> attach(const BpfOptions& options, std::string* error);

  /// Whether packets to a port are taken.
  bool set_port(std::uint16_t port, bool is_taken);
  /// The AF_XDP socket of a queue.
  bool set_socket(std::uint32_t queue, int socket);

  static constexpr std::uint32_t kMaxQueues = 64;

 private:
  BpfProgram() = default;

  UniqueFd ports_;
  UniqueFd sockets_;
  UniqueFd program_;
  UniqueFd link_;
};

}  // namespace harp
