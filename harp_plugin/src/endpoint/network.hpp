// HARP in this process: its devices, their engines, and how connections begin.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "endpoint/connection.hpp"
#include "endpoint/datapath_maker.hpp"
#include "endpoint/interfaces.hpp"
#include "endpoint/settings.hpp"
#include "protocol/handle.hpp"
#include "runtime/background_driver.hpp"
#include "runtime/engine.hpp"
#include "runtime/stat_publisher.hpp"
#include "sync/mutex.hpp"
#include "telemetry/stat_file.hpp"

namespace harp {

/// Thread: any, for all of it.
class Network {
 public:
  /// Told what a log should say; not an error.
  using Notice = std::function<void(const std::string&)>;

  Network(Settings settings, std::vector<Interface> interfaces, Notice notice = {});

  const std::vector<Interface>& devices() const { return interfaces_; }
  /// One line: which datapath, mode and devices, and why.
  std::string description() const;

  /// One device has so many, both ends counted. A listener's belong to its engine and count, too.
  std::size_t max_connections() const;

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
  std::unique_ptr<StatPublisher> make_publisher(std::size_t device, std::size_t index)
      HARP_REQUIRES(mutex_);
  void open_stat_file() HARP_REQUIRES(mutex_);
  void tell(const std::string& text) const;

  Settings settings_;
  std::vector<Interface> interfaces_;
  Notice notice_;
  Mutex mutex_;
  bool has_looked_for_stat_file_ HARP_GUARDED_BY(mutex_) = false;
  std::unique_ptr<StatFile> stat_file_ HARP_GUARDED_BY(mutex_);  ///< Outlives the drivers.
  DatapathMaker datapaths_ HARP_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<BackgroundDriver>> drivers_ HARP_GUARDED_BY(mutex_);
  struct DeviceEngines {
    std::vector<Engine*> engines;
    std::size_t next = 0;
  };
  std::vector<DeviceEngines> engines_ HARP_GUARDED_BY(mutex_);
};

}  // namespace harp
