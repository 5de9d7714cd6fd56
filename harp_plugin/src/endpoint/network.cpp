#include "endpoint/network.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/time.hpp"
#include "endpoint/connection.hpp"
#include "endpoint/interfaces.hpp"
#include "endpoint/settings.hpp"
#include "protocol/handle.hpp"
#include "runtime/background_driver.hpp"
#include "runtime/backlog.hpp"
#include "runtime/clock.hpp"
#include "runtime/engine.hpp"
#include "runtime/random.hpp"
#include "runtime/stack.hpp"
#include "runtime/stat_publisher.hpp"
#include "sync/mutex.hpp"
#include "telemetry/stat_file.hpp"

namespace harp {
namespace {

const char* mode_name(RunMode mode) {
  switch (mode) {
    case RunMode::kThread:
      return "thread";
    case RunMode::kAdaptive:
      return "adaptive";
    case RunMode::kInline:
      break;
  }
  return "inline";
}

StackConfig stack_config(const Settings& settings) {
  StackConfig config;
  config.clock = clock_now;
  config.paths = settings.paths;
  config.session.peer_timeout = settings.peer_timeout;
  config.session.connect_timeout = settings.peer_timeout;
  config.session.payload_crc = wants_payload_crc(settings);
  config.session.competes = settings.competes;
  // A kernel's queue, and a thread that is woken, delay packets without being full.
  config.session.queue_allowance = std::chrono::microseconds(300);
  if (settings.mode != RunMode::kThread) {
    // The wake-up of a background driver is in it.
    config.session.min_rto = std::chrono::milliseconds(10);
  }
  return config;
}

}  // namespace

Network::Network(Settings settings, std::vector<Interface> interfaces, Notice notice)
    : settings_(std::move(settings)),
      interfaces_(std::move(interfaces)),
      notice_(std::move(notice)),
      datapaths_(settings_, interfaces_),
      engines_(interfaces_.size()) {}

std::string Network::description() const {
  std::string text = "datapath " + std::string(describe(settings_.datapath)) + ", mode ";
  text += mode_name(settings_.mode);
  text += ", " + std::to_string(settings_.engines) + " engine(s) and " +
          std::to_string(settings_.paths) + " paths on";
  for (const Interface& device : interfaces_) {
    text += " " + device.name + "=" + to_string(device.address);
  }
  text += settings_.competes ? "" : "; yields to TCP";
  return settings_.fault ? text + "; HARP_FAULT damages what is sent" : text;
}

std::size_t Network::max_connections() const {
  return static_cast<std::size_t>(settings_.engines) * Stack::kMaxSessions;
}

Network::Listening Network::listen(std::size_t device) {
  Engine& engine = engine_for(device);
  auto backlog = std::make_shared<Backlog>();
  const ConnectHandle handle =
      engine.with_stack([&](Stack& stack, Time) { return stack.listen(backlog); });
  return {std::make_unique<Acceptor>(engine, handle.listen_id, backlog), handle};
}

std::unique_ptr<Connection> Network::connect(std::size_t device, const ConnectHandle& handle) {
  if (handle.family != interfaces_[device].address.family) {
    throw std::runtime_error("the peer's address and that of " + interfaces_[device].name +
                             " are not of one family: choose interfaces with HARP_IFNAME");
  }
  for (int tries = 0; tries < settings_.engines; ++tries) {
    Engine& engine = engine_for(device);
    auto channel =
        engine.with_stack([&](Stack& stack, Time now) { return stack.connect(handle, now); });
    if (channel != nullptr) {
      return std::make_unique<Connection>(engine, std::move(channel));
    }
  }
  throw std::runtime_error(
      interfaces_[device].name + " has " + std::to_string(max_connections()) +
      " connections already, as many as its engines hold; HARP_ENGINES gives it more engines");
}

/// The next one of the device's. All are made at once: packets may come to the queue of any.
Engine& Network::engine_for(std::size_t device) {
  const MutexLock lock(mutex_);
  DeviceEngines& mine = engines_[device];
  const auto count = static_cast<std::size_t>(settings_.engines);
  while (mine.engines.size() < count) {
    mine.engines.push_back(&make_engine(device, mine.engines.size()));
  }
  return *mine.engines[mine.next++ % count];
}

Engine& Network::make_engine(std::size_t device, std::size_t index) {
  auto stack = std::make_unique<Stack>(datapaths_.open(device, index), stack_config(settings_));
  // Callers drive inline engines, so one background driver is enough for all of those.
  if (drivers_.empty() || settings_.mode != RunMode::kInline) {
    BackgroundDriverOptions options;
    options.mode = settings_.mode;
    if (index < settings_.cores.size() && settings_.mode != RunMode::kInline) {
      options.core = settings_.cores[index];
    }
    drivers_.push_back(std::make_unique<BackgroundDriver>(options));
  }
  return drivers_.back()->add(std::move(stack), make_publisher(device, index));
}

/// Null where the counters are not published.
std::unique_ptr<StatPublisher> Network::make_publisher(std::size_t device, std::size_t index) {
  if (!std::exchange(has_looked_for_stat_file_, true) && settings_.stat) {
    open_stat_file();
  }
  if (stat_file_ == nullptr) {
    return nullptr;
  }
  std::string error;
  const auto block = stat_file_->reserve_block(
      device * static_cast<std::size_t>(settings_.engines) + index, &error);
  if (block.empty()) {
    tell("an engine's counters cannot be seen by harp-stat: " + error);
    return nullptr;
  }
  return std::make_unique<StatPublisher>(
      EngineLabels{.device = interfaces_[device].name,
                   .index = index,
                   .datapath = std::string(datapath_name(settings_.datapath)),
                   .mode = mode_name(settings_.mode)},
      block);
}

void Network::open_stat_file() {
  (void)remove_dead_stat_files(settings_.stat_folder);
  std::string error;
  stat_file_ = StatFile::create(
      settings_.stat_folder,
      random_value<std::uint64_t>(),
      StatPublisher::layout(interfaces_.size() * static_cast<std::size_t>(settings_.engines)),
      &error);
  tell(stat_file_ != nullptr ? "harp-stat shows the counters, from " + stat_file_->path()
                             : "counters cannot be seen by harp-stat: " + error);
}

void Network::tell(const std::string& text) const {
  if (notice_) {
    notice_(text);
  }
}

}  // namespace harp
