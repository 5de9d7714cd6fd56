#include "lightcc/rendezvous/store_map.hpp"

#include <utility>

#include "lightcc/wire/store_messages.hpp"

namespace lightcc {
namespace {

// About what the map's node, the value's header and the allocator need, so that a flood of empty
// values is bounded too.
constexpr std::size_t kEntryBytes = 160;

std::size_t cost_bytes(const std::string& key, const Bytes& value) {
  return kEntryBytes + key.size() + value.size();
}

}  // namespace

Status StoreMap::set(const std::string& key, Bytes value) {
  LIGHTCC_RETURN_IF_ERROR(check_store_key(key));
  LIGHTCC_RETURN_IF_ERROR(check_store_value(value.size()));
  const auto found = values_.find(key);
  const std::size_t freed_bytes = found == values_.end() ? 0 : cost_bytes(key, *found->second);
  const std::size_t wanted_bytes = cost_bytes(key, value);
  const std::size_t others_bytes = stored_bytes_ - freed_bytes;
  if (others_bytes > capacity_bytes_ || wanted_bytes > capacity_bytes_ - others_bytes) {
    return make_error(ErrorCode::kSystem,
                      "the store is full: key '%s' needs %zu bytes, %zu of %zu are in use",
                      key.c_str(),
                      wanted_bytes,
                      others_bytes,
                      capacity_bytes_);
  }
  auto shared = std::make_shared<const Bytes>(std::move(value));
  values_.insert_or_assign(key, std::move(shared));
  stored_bytes_ = others_bytes + wanted_bytes;
  return {};
}

StoreMap::Value StoreMap::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

void StoreMap::remove_prefix(const std::string& prefix) {
  auto entry = values_.lower_bound(prefix);
  while (entry != values_.end() && entry->first.starts_with(prefix)) {
    stored_bytes_ -= cost_bytes(entry->first, *entry->second);
    entry = values_.erase(entry);
  }
}

}  // namespace lightcc
