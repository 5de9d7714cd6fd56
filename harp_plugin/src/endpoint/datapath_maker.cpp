#include "endpoint/datapath_maker.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "datapath/datapath.hpp"
#include "datapath/dpdk_api.hpp"
#include "datapath/faulty.hpp"
#include "datapath/udp.hpp"
#include "datapath/xdp/af_xdp.hpp"
#include "endpoint/interfaces.hpp"
#include "endpoint/settings.hpp"

namespace harp {
namespace {

/// A port for every path; where a NIC spreads packets over several engines' queues by hashing,
/// more, for paths to move to.
std::uint16_t local_ports(const Settings& settings) {
  constexpr std::uint16_t kPortsToChooseFrom = 64;
  const bool has_queues =
      settings.datapath == DatapathKind::kAfXdp || settings.datapath == DatapathKind::kDpdk;
  return has_queues && settings.engines > 1 ? std::max(kPortsToChooseFrom, settings.paths)
                                            : settings.paths;
}

UdpOptions socket_options(const Settings& settings, const Interface& interface) {
  return {.local = interface.address,
          .local_ports = local_ports(settings),
          .mtu_bytes = interface.mtu_bytes};
}

/// Beside the file that this code is in.
std::string default_dpdk_library() {
  Dl_info self{};
  (void)::dladdr(reinterpret_cast<const void*>(&default_dpdk_library), &self);
  const std::string file = self.dli_fname != nullptr ? self.dli_fname : "";
  return file.substr(0, file.rfind('/') + 1) + "libharp-dpdk.so";
}

OpenDpdkPort load_dpdk(const std::string& wanted, std::string* error) {
  const std::string path = wanted.empty() ? default_dpdk_library() : wanted;
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const open_port = library != nullptr ? ::dlsym(library, "harp_dpdk_open_port") : nullptr;
  if (open_port == nullptr) {
    *error = std::string("HARP_DATAPATH=dpdk needs libharp-dpdk.so and DPDK 22.11: ") +
             ::dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
  }
  return reinterpret_cast<OpenDpdkPort>(open_port);
}

}  // namespace

std::vector<Interface> find_devices(const Settings& settings) {
  if (settings.datapath != DatapathKind::kDpdk) {
    return find_interfaces(settings.interfaces);
  }
  constexpr int kUnknownSpeed = 10000;
  std::vector<Interface> devices;
  devices.reserve(settings.dpdk_devices.size());
  for (const DpdkDevice& one : settings.dpdk_devices) {
    devices.push_back({.name = "dpdk" + std::to_string(devices.size()),
                       .pci_path = pci_path_of_device("/sys/bus/pci/devices/" + one.device),
                       .speed_mbps = kUnknownSpeed,
                       .mtu_bytes = static_cast<std::size_t>(settings.dpdk_mtu_bytes),
                       .address = one.address});
  }
  return devices;
}

std::unique_ptr<Datapath> DatapathMaker::open(std::size_t device, std::size_t engine) {
  std::string error;
  std::unique_ptr<Datapath> made;
  switch (settings_.datapath) {
    case DatapathKind::kAfXdp:
      made = open_af_xdp(device, engine, &error);
      break;
    case DatapathKind::kDpdk:
      made = open_dpdk(device, engine, &error);
      break;
    case DatapathKind::kAuto:
    case DatapathKind::kUdp:
      made = UdpDatapath::open(socket_options(settings_, devices_[device]), &error);
      break;
  }
  if (made == nullptr) {
    throw std::runtime_error(error);
  }
  if (settings_.fault) {
    made = std::make_unique<FaultyDatapath>(std::move(made), *settings_.fault);
  }
  return made;
}

std::unique_ptr<Datapath> DatapathMaker::open_af_xdp(std::size_t device,
                                                     std::size_t engine,
                                                     std::string* error) {
  std::shared_ptr<AfXdpDevice>& xdp = xdp_[device];
  if (xdp == nullptr) {
    const Interface& interface = devices_[device];
    xdp = AfXdpDevice::open({.interface = interface.name,
                             .sockets = socket_options(settings_, interface),
                             .engines = static_cast<std::size_t>(settings_.engines)},
                            error);
  }
  return xdp != nullptr ? xdp->open_engine(engine, error) : nullptr;
}

std::unique_ptr<Datapath> DatapathMaker::open_dpdk(std::size_t device,
                                                   std::size_t engine,
                                                   std::string* error) {
  std::unique_ptr<DpdkPort>& port = dpdk_[device];
  if (port == nullptr) {
    const OpenDpdkPort open_port = load_dpdk(settings_.dpdk_library, error);
    if (open_port == nullptr) {
      return nullptr;
    }
    const DpdkDevice& one = settings_.dpdk_devices[device];
    port.reset(open_port({.device = one.device,
                          .address = one.address,
                          .prefix = one.prefix,
                          .gateway = one.gateway,
                          .mtu_bytes = devices_[device].mtu_bytes,
                          .engines = static_cast<std::size_t>(settings_.engines),
                          .local_ports = local_ports(settings_)},
                         error));
  }
  return port != nullptr ? port->open_engine(engine) : nullptr;
}

std::string_view datapath_name(DatapathKind kind) {
  switch (kind) {
    case DatapathKind::kDpdk:
      return "dpdk";
    case DatapathKind::kAfXdp:
      return "af_xdp";
    case DatapathKind::kUdp:
    case DatapathKind::kAuto:
      break;
  }
  return "udp";
}

std::string_view describe(DatapathKind kind) {
  switch (kind) {
    case DatapathKind::kDpdk:
      return "dpdk (HARP_DATAPATH asks for it)";
    case DatapathKind::kAfXdp:
      return "af_xdp (HARP_DATAPATH asks for it)";
    case DatapathKind::kUdp:
      return "udp (HARP_DATAPATH asks for it)";
    case DatapathKind::kAuto:
      break;
  }
  return "udp (needs no privilege; HARP_DATAPATH=af_xdp takes an interface's queues)";
}

}  // namespace harp
