// A small shared map through which the ranks of a new world find each other.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc {

/// Thread: any. Blocks: until the deadline at most.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  /// Sets `key` (at most 256 bytes) to `value` (at most 16 MiB), replacing what was there.
  virtual Status set(const std::string& key, std::vector<std::byte> value, TimePoint deadline) = 0;
  /// Waits until `key` exists and returns its value. kTimeout at the deadline, naming the key.
  virtual Result<std::vector<std::byte>> get(const std::string& key, TimePoint deadline) = 0;
  /// Removes every key that starts with `prefix`.
  virtual Status remove_prefix(const std::string& prefix, TimePoint deadline) = 0;
};

}  // namespace lightcc
