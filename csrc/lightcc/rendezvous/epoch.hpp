// One meeting of ranks that becomes a world: what discovery finds out before any other rank was
// heard. lightcc/_discovery/epoch.py has it for Python.
#pragma once

#include <memory>
#include <string>

#include "lightcc/rendezvous/store.hpp"

namespace lightcc {

struct Epoch {
  int rank = 0;
  int size = 1;
  std::shared_ptr<Store> store;  ///< May be null when size is 1.
  /// Prefix of this epoch's keys in the store. It is the same on all ranks, and no other epoch's.
  std::string key_prefix;
  std::string secret;  ///< Shared by the job's ranks.
  /// Address of the store as "host:port"; the route to it picks this rank's address. May be empty.
  std::string rendezvous_address;
};

}  // namespace lightcc
