// HARP in this process: its devices, their engines, and how connections begin.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "endpoint/connection.hpp"
#include "endpoint/datapath_maker.hpp"
#include "endpoint/interfaces.hpp"
#include "endpoint/settings.hpp"
#include "protocol/handle.hpp"
#include "runtime/engine.hpp"
#include "runtime/keeper.hpp"
#include "sync/mutex.hpp"

namespace harp {

/// Thread: any, for all of it.
class Network {
 public:
  Network(Settings settings, std::vector<Interface> interfaces);

  const std::vector<Interface>& devices() const { return interfaces_; }
  /// One line: which datapath, mode and devices, and why.
  std::string description() const;

  struct Listening {
    std::unique_ptr<Acceptor> acceptor;
    ConnectHandle handle;
  };
  /// Throws std::runtime_error where the device has no socket left, or too many sessions.
  Listening listen(std::size_t device);
  /// Begins to connect. The peer's application takes no part. Throws as listen().
  std::unique_ptr<Connection> connect(std::size_t device, const ConnectHandle& handle);

 private:
  Engine& engine_for(std::size_t device);
  Engine& make_engine(std::size_t device, std::size_t index) HARP_REQUIRES(mutex_);

  Settings settings_;
  std::vector<Interface> interfaces_;
  Mutex mutex_;
  DatapathMaker datapaths_ HARP_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Keeper>> keepers_ HARP_GUARDED_BY(mutex_);
  struct DeviceEngines {
    std::vector<Engine*> engines;
    std::size_t next = 0;
  };
  std::vector<DeviceEngines> engines_ HARP_GUARDED_BY(mutex_);
};

}  // namespace harp
