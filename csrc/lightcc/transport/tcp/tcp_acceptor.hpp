// The listening side of a TCP transport: brings authenticated sockets to the channels they name.
//
// What does not belong here (another world, a malformed hello) is closed; the rest is
// channel_directory.hpp's, where sockets also wait for accept().
#pragma once

#include <cstdint>
#include <memory>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/net/authenticated.hpp"
#include "lightcc/transport/channel/channel_directory.hpp"
#include "lightcc/transport/channel/channel_options.hpp"
#include "lightcc/transport/tcp/tcp_frame.hpp"
#include "lightcc/transport/tcp/tcp_loop.hpp"
#include "lightcc/transport/tcp/tcp_receiver.hpp"

namespace lightcc {

class TcpAcceptor final : private EventSink {
 public:
  static Result<std::unique_ptr<TcpAcceptor>> make(std::shared_ptr<TcpLoop> loop,
                                                   std::unique_ptr<AuthListener> listener,
                                                   const ChannelOptions& options);
  /// For make().
  TcpAcceptor(std::shared_ptr<TcpLoop> loop,
              std::unique_ptr<AuthListener> listener,
              const ChannelOptions& options);
  TcpAcceptor(const TcpAcceptor&) = delete;
  TcpAcceptor& operator=(const TcpAcceptor&) = delete;
  ~TcpAcceptor() override;

  /// kInvalidArgument when the channel exists already.
  Result<std::unique_ptr<RecvChannel>> accept(const ChannelId& id);
  /// Why the listener stopped working, once.
  Status take_error();

 private:
  void on_event(std::uint32_t index, std::uint32_t events) override;
  bool pump() override { return false; }
  void on_time(TimePoint now) override;

  void admit(AuthenticatedSocket socket);
  void set_alarm();

  std::shared_ptr<TcpLoop> loop_;
  std::unique_ptr<AuthListener> listener_;
  const ChannelOptions options_;
  WatchToken watch_ = 0;
  ChannelDirectory<TcpRecvChannel, UniqueFd> directory_;
  Status error_;
};

}  // namespace lightcc
