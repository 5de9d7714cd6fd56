// The listening side of a TCP transport: brings authenticated sockets to the channels they name.
//
// A peer may connect before anybody here accepted the channel: its sockets are parked, bounded in
// number and in age, until accept() comes. What does not belong here (another world, a malformed
// hello, a second socket with one index, a sender older than the one that is known) is closed. When
// a sender was replaced by a newer one, the newer sockets wait for the next accept() of that
// channel.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>

#include "lightcc/base/clock.hpp"
#include "lightcc/net/authenticated.hpp"
#include "lightcc/transport/tcp/tcp_frame.hpp"
#include "lightcc/transport/tcp/tcp_loop.hpp"
#include "lightcc/transport/tcp/tcp_receiver.hpp"

namespace lightcc {

struct TcpAcceptorOptions {
  std::uint64_t world_id = 0;
  Duration user_timeout{};
  Duration park_timeout{};
  std::size_t max_parked = 0;
};

class TcpAcceptor final : public std::enable_shared_from_this<TcpAcceptor>, private EventSink {
 public:
  static Result<std::shared_ptr<TcpAcceptor>> make(std::shared_ptr<TcpLoop> loop,
                                                   std::unique_ptr<AuthListener> listener,
                                                   const TcpAcceptorOptions& options);
  /// For make().
  TcpAcceptor(std::shared_ptr<TcpLoop> loop,
              std::unique_ptr<AuthListener> listener,
              const TcpAcceptorOptions& options);
  TcpAcceptor(const TcpAcceptor&) = delete;
  TcpAcceptor& operator=(const TcpAcceptor&) = delete;
  ~TcpAcceptor() override;

  /// kInvalidArgument when the channel exists already.
  Result<std::unique_ptr<RecvChannel>> accept(const ChannelId& id);
  /// Why the listener stopped working, once.
  Status take_error();

 private:
  struct Parked {
    UniqueFd fd;
    TcpHello hello;
    TimePoint since;
  };
  struct Before {
    bool operator()(const ChannelId& a, const ChannelId& b) const;
  };

  void on_event(std::uint32_t index, std::uint32_t events) override;
  bool pump() override { return false; }
  void on_time(TimePoint now) override;

  void admit(AuthenticatedSocket socket);
  void park(UniqueFd fd, const TcpHello& hello);
  void attach_parked(const ChannelId& id, TcpRecvChannel& channel);

  std::shared_ptr<TcpLoop> loop_;
  std::unique_ptr<AuthListener> listener_;
  const TcpAcceptorOptions options_;
  WatchToken watch_ = 0;
  std::map<ChannelId, TcpRecvChannel*, Before> channels_;
  std::list<Parked> parked_;  ///< Oldest first.
  Status error_;
};

}  // namespace lightcc
