// The Store over TCP: a server (in the launcher or on rank 0) and its clients.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/net/socket_address.hpp"
#include "lightcc/rendezvous/store.hpp"

namespace lightcc {

/// Serves one store from a thread of its own until destroyed. Bounded memory per connection;
/// clients that have not proved the secret are never parsed.
class LIGHTCC_EXPORT TcpStoreServer {
 public:
  TcpStoreServer() = default;
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  virtual ~TcpStoreServer() = default;
  /// `capacity_bytes`: of all keys and values together; a set beyond it is refused with kSystem.
  static Result<std::unique_ptr<TcpStoreServer>> start(const SocketAddress& bind_address,
                                                       std::string secret,
                                                       std::size_t capacity_bytes = std::size_t{1}
                                                                                    << 30);
  virtual const SocketAddress& address() const = 0;  ///< With the real port.
};

/// A client that can be closed: what it does then fails with kShutDown, at once.
class LIGHTCC_EXPORT TcpStoreClient : public Store {
 public:
  /// Thread: any. Blocks: never.
  virtual void close() = 0;
};

/// A client. The connection is made at the first call (retrying while the server is not there yet)
/// and made again if it was lost; a call that was under way then is repeated. A get that waits does
/// not keep other threads waiting.
LIGHTCC_EXPORT std::unique_ptr<TcpStoreClient> make_tcp_store(std::string host_and_port,
                                                              std::string secret);

}  // namespace lightcc
