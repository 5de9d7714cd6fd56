#include "lightcc/rendezvous/store_map.hpp"

#include <utility>

namespace lightcc {
namespace {

// About what the map's node, the value's header and the allocator need, so that a flood of empty
// values is bounded too.
constexpr std::size_t kEntryBytes = 160;

std::size_t cost_bytes(const std::string& key, const Bytes& value) {
  return kEntryBytes + key.size() + value.size();
}

/// SplitMix64's output function: the sum over different sets of revisions is a different number,
/// but for one in 2^64.
std::uint64_t mixed(std::uint64_t revision) {
  std::uint64_t bits = revision * 0x9e3779b97f4a7c15U;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebU;
  return bits ^ (bits >> 31);
}

}  // namespace

Status StoreMap::set(const std::string& key, Bytes value) {
  LIGHTCC_RETURN_IF_ERROR(check_store_key(key));
  LIGHTCC_RETURN_IF_ERROR(check_store_value(value.size()));
  const auto found = entries_.find(key);
  const std::size_t freed_bytes =
      found == entries_.end() ? 0 : cost_bytes(key, *found->second.value);
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
  entries_.insert_or_assign(key, Entry{std::move(shared), ++last_revision_});
  stored_bytes_ = others_bytes + wanted_bytes;
  return {};
}

Result<StoreMap::Value> StoreMap::compare_and_set(const std::string& key,
                                                  const std::optional<Bytes>& expected,
                                                  Bytes desired) {
  LIGHTCC_RETURN_IF_ERROR(check_store_key(key));
  LIGHTCC_RETURN_IF_ERROR(check_store_compare(desired.size()));
  const Value found = find(key);
  const bool is_expected =
      expected.has_value() ? found != nullptr && *found == *expected : found == nullptr;
  if (is_expected) {
    LIGHTCC_RETURN_IF_ERROR(set(key, std::move(desired)));
  }
  return find(key);
}

Status StoreMap::add_share(const std::string& key,
                           std::uint32_t index,
                           std::uint32_t count,
                           Bytes share) {
  const auto key_of = [&key](std::uint32_t number) { return key + '/' + std::to_string(number); };
  const bool is_new = find(key_of(index)) == nullptr;
  LIGHTCC_RETURN_IF_ERROR(set(key_of(index), std::move(share)));
  if (!is_new || ++shares_[key] < count) {
    return {};
  }
  Bytes all;
  ByteWriter writer(all);
  std::uint32_t there = 0;
  for (std::uint32_t number = 0; number < count; ++number) {
    if (const Value one = find(key_of(number)); one != nullptr) {
      writer.blob(*one);
      ++there;
    }
  }
  if (there < count) {  // Some were removed.
    shares_[key] = there;
    return {};
  }
  shares_.erase(key);
  return set(key, std::move(all));
}

StoreMap::Value StoreMap::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second.value;
}

void StoreMap::remove_prefix(const std::string& prefix) {
  auto entry = entries_.lower_bound(prefix);
  while (entry != entries_.end() && entry->first.starts_with(prefix)) {
    stored_bytes_ -= cost_bytes(entry->first, *entry->second.value);
    entry = entries_.erase(entry);
  }
  std::erase_if(shares_, [&prefix](const auto& share) { return share.first.starts_with(prefix); });
}

std::uint64_t StoreMap::state(const std::string& prefix) const {
  std::uint64_t sum = 1;
  auto entry = entries_.lower_bound(prefix);
  for (; entry != entries_.end() && entry->first.starts_with(prefix); ++entry) {
    sum += mixed(entry->second.revision);
  }
  return sum == 0 ? 1 : sum;
}

Result<StoreView> StoreMap::view(const std::string& prefix) const {
  StoreView view;
  view.state = state(prefix);
  std::size_t total_bytes = 0;
  auto entry = entries_.lower_bound(prefix);
  for (; entry != entries_.end() && entry->first.starts_with(prefix); ++entry) {
    const Bytes& value = *entry->second.value;
    total_bytes += kStoreEntryHeadBytes + entry->first.size() + value.size();
    if (total_bytes > kMaxStoreViewBytes) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "the keys and values below '%s' have more than the %zu bytes that one watch "
          "may see",
          prefix.c_str(),
          kMaxStoreViewBytes);
    }
    view.entries.emplace_back(entry->first, value);
  }
  return view;
}

}  // namespace lightcc
