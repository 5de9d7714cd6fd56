// Who waits for a change below a prefix of a store's keys.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lightcc/rendezvous/store_map.hpp"

namespace lightcc {

/// Thread: one.
class WatchTable {
 public:
  using Client = std::uint64_t;

  struct Watch {
    std::string prefix;
    std::uint64_t known_state = 0;
  };

  /// A client has one watch at most.
  void add(Client client, Watch watch);
  void remove(Client client) { watches_.erase(client); }
  /// Null when there is none.
  const Watch* find(Client client) const;
  /// Whose watch sees another state than it knows, after a change of the key, or of the keys below
  /// the prefix, `changed`.
  std::vector<Client> due(const std::string& changed, const StoreMap& map) const;

 private:
  std::map<Client, Watch> watches_;
};

}  // namespace lightcc
