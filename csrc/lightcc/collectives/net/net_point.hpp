// Send and receive between two members: one block, in messages of the group's chunk size.
//
//   steps 1;  bytes sent by the sender: N
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

class NetSend final : public NetWork {
 public:
  NetSend(std::shared_ptr<NetLinks> links, const std::byte* in, std::size_t bytes, int peer)
      : NetWork(std::move(links)), in_(in), bytes_(bytes), peer_(peer) {}

 private:
  Status begin() override;
  Result<Progress> step() override;

  const std::byte* in_;
  std::size_t bytes_;
  int peer_;
  NetSendStream stream_;
};

class NetRecv final : public NetWork {
 public:
  NetRecv(std::shared_ptr<NetLinks> links, std::byte* out, std::size_t bytes, int peer)
      : NetWork(std::move(links)), out_(out), bytes_(bytes), peer_(peer) {}

 private:
  Status begin() override;
  Result<Progress> step() override;

  std::byte* out_;
  std::size_t bytes_;
  int peer_;
  NetRecvStream stream_;
};

}  // namespace lightcc
