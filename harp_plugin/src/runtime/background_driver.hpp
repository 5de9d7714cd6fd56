// The thread that looks after engines: it drives those that have no callers, and sleeps until one
// of them needs it. Every engine has one, so that a peer is answered, however busy the application
// is.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/time.hpp"
#include "runtime/engine.hpp"
#include "runtime/sleeper.hpp"
#include "runtime/stack.hpp"
#include "runtime/stat_publisher.hpp"
#include "sync/mutex.hpp"

namespace harp {

struct BackgroundDriverOptions {
  RunMode mode = RunMode::kInline;  ///< Its engines have it.
  Duration spin{50'000};            ///< Adaptive: from the last work until it sleeps.
  std::optional<int> core;          ///< Its thread runs there.
};

class BackgroundDriver {
 public:
  /// Starts the thread, with all signals blocked. Throws std::system_error where it cannot.
  explicit BackgroundDriver(const BackgroundDriverOptions& options);
  BackgroundDriver(const BackgroundDriver&) = delete;
  BackgroundDriver& operator=(const BackgroundDriver&) = delete;
  /// Ends the thread; sessions end without a word to their peers.
  ~BackgroundDriver();

  /// Thread: any. The engine lives as long as the background driver.
  Engine& add(std::unique_ptr<Stack> stack, std::unique_ptr<StatPublisher> publisher = nullptr);

 private:
  void run();
  bool drive_all();
  bool shall_spin(Time last_work, Time now) const;
  void sleep();
  void set_up_thread() const;

  BackgroundDriverOptions options_;
  Sleeper sleeper_;
  std::atomic<bool> is_ending_{false};
  std::atomic<std::size_t> engine_count_{0};
  Mutex mutex_;
  std::vector<std::unique_ptr<Engine>> engines_ HARP_GUARDED_BY(mutex_);
  std::vector<Engine*> mine_;  ///< The thread's own copy.
  std::thread thread_;
};

}  // namespace harp
