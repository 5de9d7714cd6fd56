// The keys and values of one store, bounded in bytes: what HashStore and the TCP server have in
// common.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc {

inline constexpr std::size_t kDefaultStoreCapacityBytes = std::size_t{1} << 30;

/// Thread: one.
class StoreMap {
 public:
  /// Shared, so that an answer under way needs no copy and survives the key.
  using Value = std::shared_ptr<const Bytes>;

  explicit StoreMap(std::size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  /// kInvalidArgument: key or value too long. kSystem: it would not fit; what was there stays.
  Status set(const std::string& key, Bytes value);
  /// Null when there is none.
  Value find(const std::string& key) const;
  void remove_prefix(const std::string& prefix);
  /// With what each entry costs beside its bytes.
  std::size_t stored_bytes() const { return stored_bytes_; }

 private:
  std::map<std::string, Value> values_;
  std::size_t capacity_bytes_;
  std::size_t stored_bytes_ = 0;
};

}  // namespace lightcc
