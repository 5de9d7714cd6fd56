// Opens the datapath that the settings ask for.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/datapath.hpp"
#include "datapath/dpdk_api.hpp"
#include "datapath/xdp/af_xdp.hpp"
#include "endpoint/interfaces.hpp"
#include "endpoint/settings.hpp"

namespace harp {

/// What NCCL sees as devices.
std::vector<Interface> find_devices(const Settings& settings);

/// The one that is used: "udp", "af_xdp" or "dpdk".
std::string_view datapath_name(DatapathKind kind);
/// Which datapath, and why.
std::string_view describe(DatapathKind kind);

/// Thread: one at a time.
class DatapathMaker {
 public:
  /// Both outlive it.
  DatapathMaker(const Settings& settings, const std::vector<Interface>& devices)
      : settings_(settings), devices_(devices), xdp_(devices.size()), dpdk_(devices.size()) {}

  /// For one engine of a device. Throws std::runtime_error, which says what the system refused.
  std::unique_ptr<Datapath> open(std::size_t device, std::size_t engine);

 private:
  std::unique_ptr<Datapath> open_af_xdp(std::size_t device, std::size_t engine, std::string* error);
  std::unique_ptr<Datapath> open_dpdk(std::size_t device, std::size_t engine, std::string* error);

  const Settings& settings_;
  const std::vector<Interface>& devices_;
  std::vector<std::shared_ptr<AfXdpDevice>> xdp_;
  std::vector<std::unique_ptr<DpdkPort>> dpdk_;
};

}  // namespace harp
