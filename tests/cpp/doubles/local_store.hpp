#pragma once

#include <memory>

#include "lightcc/rendezvous/tcp_store.hpp"

namespace lightcc {

/// A store with a server of its own on the loopback interface, both as long as somebody has it.
std::shared_ptr<Store> make_local_store();

}  // namespace lightcc
