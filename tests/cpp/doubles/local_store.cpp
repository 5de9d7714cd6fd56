#include "doubles/local_store.hpp"

#include <utility>

namespace lightcc {
namespace {

struct ServedStore {
  std::unique_ptr<TcpStoreServer> server;
  std::unique_ptr<TcpStoreClient> client;
};

}  // namespace

std::shared_ptr<Store> make_local_store() {
  auto address = SocketAddress::resolve("127.0.0.1:0");
  auto server = TcpStoreServer::start(std::move(address).value(), "secret");
  auto served = std::make_shared<ServedStore>();
  served->server = std::move(server).value();
  served->client = make_tcp_store(served->server->address().to_string(), "secret");
  return {served, served->client.get()};
}

}  // namespace lightcc
