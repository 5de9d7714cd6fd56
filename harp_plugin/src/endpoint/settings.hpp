// What the environment and the profile say about HARP.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time.hpp"
#include "datapath/address.hpp"
#include "datapath/fault_spec.hpp"
#include "endpoint/profile.hpp"
#include "runtime/engine.hpp"

namespace harp {

enum class DatapathKind : std::uint8_t {
  kAuto,  ///< UDP: to take over a NIC's queues is something to be asked for.
  kUdp,
  kAfXdp,
  kDpdk,
};

/// A network device that DPDK drives, and what the kernel would otherwise know of it.
struct DpdkDevice {
  std::string device;  ///< PCI address, or virtual device with its arguments.
  Address address;     ///< IPv4.
  unsigned prefix = 24;
  std::optional<Address> gateway;
};

struct Settings {
  std::string interfaces;  ///< HARP_IFNAME, else NCCL_SOCKET_IFNAME; see find_interfaces().
  /// HARP_PEER_TIMEOUT, else LIGHT_PEER_TIMEOUT, in seconds: silence after which a peer is dead.
  Duration peer_timeout = std::chrono::seconds(30);
  RunMode mode = RunMode::kInline;              ///< HARP_MODE: inline, adaptive or thread.
  DatapathKind datapath = DatapathKind::kAuto;  ///< HARP_DATAPATH: auto, udp, af_xdp or dpdk.
  /// HARP_DPDK, with dpdk: "DEVICE@ADDRESS/PREFIX[@GATEWAY];...".
  std::vector<DpdkDevice> dpdk_devices;
  std::string dpdk_library;        ///< HARP_DPDK_LIBRARY; empty: libharp-dpdk.so beside the plugin.
  int dpdk_mtu_bytes = 1500;       ///< HARP_DPDK_MTU.
  int engines = 1;                 ///< HARP_ENGINES: per device.
  std::vector<int> cores;          ///< HARP_CORES: of engine threads, "2,3"; modes but inline.
  std::uint16_t paths = 8;         ///< HARP_PATHS: 1 .. 64, to each peer.
  std::optional<FaultSpec> fault;  ///< HARP_FAULT.
  /// HARP_PAYLOAD_CRC: 1, or 0 to rely on UDP's own checksum where the datapath has one, which
  /// somebody on the path makes anew. AF_XDP has none, DPDK has the NIC's, if that makes them, and
  /// HARP_FAULT damages before it is made.
  std::optional<bool> payload_crc;
  bool competes =
      true;          ///< HARP_COMPETE: 0 or 1, whether it takes a share where TCP keeps a queue.
  bool stat = true;  ///< HARP_STAT: 0 or 1, whether other processes can see the counters.
  std::string stat_folder = "/dev/shm";  ///< HARP_STAT_DIR: where; an absolute path.
};

/// Whether payloads carry a CRC where the datapath has a checksum: as HARP_PAYLOAD_CRC says; else
/// over sockets, where it costs some 5% of the processor's time and a processor has an instruction
/// for it. Over DPDK it would cost more.
bool wants_payload_crc(const Settings& settings);

/// Reads variables with `get`, and in `profile` those that are not set there; set to nothing is
/// set, and means the default. Nothing, and `error` names variable, value, what is allowed, and the
/// line where it is the profile's, where one is wrong.
std::optional<Settings> read_settings(const GetVariable& get,
                                      const Profile& profile,
                                      std::string* error);

}  // namespace harp
