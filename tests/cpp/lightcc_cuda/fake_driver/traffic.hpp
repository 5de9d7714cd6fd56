// Copies, launches, modules, streams and timed events of the fake GPUs, as they were asked for.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>

#include "lightcc_cuda/driver/functions.hpp"

namespace lightcc::cuda::fake {

struct Copies {
  int to_host = 0;
  int to_device = 0;
  std::size_t bytes_to_host = 0;
  std::size_t bytes_to_device = 0;
};

class Traffic {
 public:
  void forget() {
    const std::lock_guard lock(mutex_);
    all_.clear();
    launches_ = 0;
    calls_ = 0;
    modules_ = 0;
    timed_events_ = 0;
    streams_.clear();
  }
  void count_stream(int priority) {
    const std::lock_guard lock(mutex_);
    ++streams_[priority];
  }
  std::map<int, int> streams() {
    const std::lock_guard lock(mutex_);
    return streams_;
  }
  void count_launch() { ++launches_; }
  void count_call() { ++calls_; }
  int calls() const { return calls_; }
  void count_module() { ++modules_; }
  void count_timed_event() { ++timed_events_; }
  int timed_events() const { return timed_events_; }
  int modules() const { return modules_; }
  int launches() const { return launches_; }
  /// How many there are with it.
  int count_to_host(Device device, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    all_[device].bytes_to_host += bytes;
    return ++all_[device].to_host;
  }
  void count_to_device(Device device, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    all_[device].bytes_to_device += bytes;
    ++all_[device].to_device;
  }
  Copies of(Device device) {
    const std::lock_guard lock(mutex_);
    return all_[device];
  }

 private:
  std::atomic<int> launches_{0};
  std::atomic<int> calls_{0};
  std::atomic<int> modules_{0};
  std::atomic<int> timed_events_{0};
  std::mutex mutex_;
  std::map<Device, Copies> all_;
  std::map<int, int> streams_;  // By priority.
};

}  // namespace lightcc::cuda::fake
