// The keys and values of one store, bounded in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/wire/store_messages.hpp"

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
  /// Sets `key` to `desired` if its value is `expected` (nothing: if there is no such key). Returns
  /// the value that the key has then, null for none. Errors as of set().
  Result<Value> compare_and_set(const std::string& key,
                                const std::optional<Bytes>& expected,
                                Bytes desired);
  /// Sets `key`/`index` to a share, one of `count`. When all are there, `key` is set to all of
  /// them, in ascending order, each a blob. Errors: as of set().
  Status add_share(const std::string& key, std::uint32_t index, std::uint32_t count, Bytes share);
  /// Null when there is none.
  Value find(const std::string& key) const;
  void remove_prefix(const std::string& prefix);
  /// A number that differs from any other that `prefix` had with other keys, or values set at other
  /// times; never 0.
  std::uint64_t state(const std::string& prefix) const;
  /// What is below `prefix`. kInvalidArgument: it is more than kMaxStoreViewBytes.
  Result<StoreView> view(const std::string& prefix) const;
  /// With what each entry costs beside its bytes.
  std::size_t stored_bytes() const { return stored_bytes_; }

 private:
  struct Entry {
    Value value;
    std::uint64_t revision = 0;  // Numbers all sets of this map.
  };
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::uint32_t> shares_;  // How many are there, where not all are.
  std::uint64_t last_revision_ = 0;
  std::size_t capacity_bytes_;
  std::size_t stored_bytes_ = 0;
};

}  // namespace lightcc
