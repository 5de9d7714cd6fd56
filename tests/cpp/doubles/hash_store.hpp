// The Store inside one process, for tests that run ranks as threads.
#pragma once

#include <memory>

#include "lightcc/rendezvous/store.hpp"

namespace lightcc {

std::shared_ptr<Store> make_hash_store();

}  // namespace lightcc
