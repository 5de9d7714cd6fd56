#include "lightcc/engine/world_compression.hpp"

#include <utility>

namespace lightcc {

Result<std::vector<SavedCompression>> save_compression(const ResidualStore& store) {
  LIGHTCC_ASSIGN_OR_RETURN(auto entries, store.save());
  std::vector<SavedCompression> all;
  all.reserve(entries.size());
  for (auto& [key, bytes] : entries) {
    all.push_back({key.first, key.second, std::move(bytes)});
  }
  return all;
}

Status scale_compression(ResidualStore& store,
                         double factor,
                         std::uint32_t process_set,
                         const std::vector<std::string>& names) {
  std::vector<ResidualStore::Key> keys;
  keys.reserve(names.size());
  for (const std::string& name : names) {
    keys.emplace_back(process_set, name);
  }
  return store.scale(factor, keys);
}

}  // namespace lightcc
