// What every plugin says of a network interface that moves host memory.
#pragma once

#include "abi/properties.hpp"
#include "abi/types.hpp"

namespace harp::plugin {

struct HostDevice {
  int index = 0;
  const char* name = nullptr;      ///< Lives as long as the process, as does the path.
  const char* pci_path = nullptr;  ///< Null: not on a PCI bus.
  int speed_mbps = 0;
  int max_comms = 65536;
  int max_recvs = 1;
};

/// Every field filled.
abi::PropertiesV12 properties_of(const HostDevice& device);

/// kInvalidArgument, and a line in NCCL's log, for memory that is not the host's.
abi::Result check_host_memory(int type);

}  // namespace harp::plugin
