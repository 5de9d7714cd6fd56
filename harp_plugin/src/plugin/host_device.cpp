#include "plugin/host_device.hpp"

#include <cstddef>
#include <cstdint>

#include "abi/properties.hpp"
#include "abi/types.hpp"
#include "plugin/guard.hpp"

namespace harp::plugin {

abi::PropertiesV12 properties_of(const HostDevice& device) {
  // Sizes are an int where a test reports them.
  constexpr std::size_t kGibibyte = std::size_t{1} << 30;
  return {
      .name = const_cast<char*>(device.name),
      .pci_path = const_cast<char*>(device.pci_path),
      .guid = static_cast<std::uint64_t>(device.index),
      .ptr_support = abi::kPtrHost,
      .reg_is_global = 0,
      .force_flush = 0,
      .speed_mbps = device.speed_mbps,
      .port = 0,
      .latency_us = 0,
      .max_comms = device.max_comms,
      .max_recvs = device.max_recvs,
      .device_type = abi::DeviceType::kHost,
      .device_version = abi::kDeviceVersionInvalid,
      .parts = {.count = 1, .devices = {device.index}},
      .max_p2p_bytes = kGibibyte,
      .max_coll_bytes = kGibibyte,
      .max_multi_request = 1,
      .rail = abi::kIdUndefined,
      .plane = abi::kIdUndefined,
  };
}

abi::Result check_host_memory(int type) {
  if (type == abi::kPtrHost) {
    return abi::Result::kSuccess;
  }
  log(abi::LogLevel::kWarn, "regMr", "only host memory, not type %d", type);
  return abi::Result::kInvalidArgument;
}

}  // namespace harp::plugin
