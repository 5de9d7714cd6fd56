// What getProperties() fills: seven layouts for nine versions.
//
// NCCL hands in uninitialised memory, so a plugin writes every field. `name` and `pci_path` must
// stay valid as long as the plugin is loaded; `pci_path` is null for a device that is not on a PCI
// bus.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/types.hpp"

namespace harp::abi {

/// A device made of several: how many, and which.
template <int Most>
struct VirtualDevice {
  int count;
  int devices[Most];  // NOLINT(modernize-avoid-c-arrays): the layout is NCCL's.
};
using VirtualDeviceV9 = VirtualDevice<4>;
using VirtualDeviceV12 = VirtualDevice<8>;

struct PropertiesV4 {
  char* name;
  char* pci_path;
  std::uint64_t guid;  ///< Equal for the functions of one card.
  int ptr_support;     ///< kPtrHost, and what else it can do.
  int speed_mbps;
  int port;
  int max_comms;
};

struct PropertiesV6 {  // and version 5
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int speed_mbps;
  int port;
  float latency_us;  ///< 0: NCCL's default.
  int max_comms;
  int max_recvs;  ///< Most buffers of one grouped receive.
};

struct PropertiesV7 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  DeviceType device_type;
  int device_version;
};

struct PropertiesV8 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;  ///< Whether a registration holds for every comm.
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  DeviceType device_type;
  int device_version;
};

struct PropertiesV10 {  // and version 9
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  DeviceType device_type;
  int device_version;
  VirtualDeviceV9 parts;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
};

struct PropertiesV11 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  DeviceType device_type;
  int device_version;
  VirtualDeviceV9 parts;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
  int max_multi_request;
};

struct PropertiesV12 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  DeviceType device_type;
  int device_version;
  VirtualDeviceV12 parts;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
  int max_multi_request;
  std::int16_t rail;
  std::int16_t plane;
};

}  // namespace harp::abi
