#include "endpoint/datapath_maker.hpp"

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "datapath/datapath.hpp"
#include "datapath/faulty.hpp"
#include "datapath/udp.hpp"
#include "datapath/xdp/af_xdp.hpp"
#include "endpoint/interfaces.hpp"
#include "endpoint/settings.hpp"

namespace harp {
namespace {

UdpOptions socket_options(const Settings& settings, const Interface& interface) {
  return {.local = interface.address,
          .local_ports = settings.paths,
          .mtu_bytes = interface.mtu_bytes,
          .segment = settings.udp_segment};
}

}  // namespace

std::unique_ptr<Datapath> DatapathMaker::open(std::size_t device, std::size_t engine) {
  std::string error;
  std::unique_ptr<Datapath> made =
      settings_.datapath == DatapathKind::kAfXdp
          ? open_af_xdp(device, engine, &error)
          : UdpDatapath::open(socket_options(settings_, devices_[device]), &error);
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

std::string_view describe(DatapathKind kind) {
  switch (kind) {
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
