#include "lightcc/rendezvous/watch_table.hpp"

#include <utility>

namespace lightcc {

void WatchTable::add(Client client, Watch watch) {
  watches_[client] = std::move(watch);
}

const WatchTable::Watch* WatchTable::find(Client client) const {
  const auto found = watches_.find(client);
  return found == watches_.end() ? nullptr : &found->second;
}

std::vector<WatchTable::Client> WatchTable::due(const std::string& changed,
                                                const StoreMap& map) const {
  std::vector<Client> clients;
  for (const auto& [client, watch] : watches_) {
    const bool is_meant = changed.starts_with(watch.prefix) || watch.prefix.starts_with(changed);
    if (is_meant && map.state(watch.prefix) != watch.known_state) {
      clients.push_back(client);
    }
  }
  return clients;
}

}  // namespace lightcc
