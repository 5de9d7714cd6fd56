// The sending end of a TCP channel.
//
// It opens several sockets and treats them as one: whichever has room takes the next stripe of what
// is queued (send_machine.hpp), so a fast path carries more and a slow socket holds up nothing but
// the stripe it has. Payload goes from the caller's memory to the kernel, header and payload in one
// system call, without a copy of ours.
//
// Nothing is sent before all sockets stand. The receiver counts on a socket before this end has
// read the last word of its handshake; a channel whose message went by another socket and which is
// then closed would reset it (unread bytes), and the receiver would see a failure.
//
// A message is done when the kernel has all of it; that it arrived is not known.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/authenticated.hpp"
#include "lightcc/transport/channel/channel_options.hpp"
#include "lightcc/transport/channel/send_machine.hpp"
#include "lightcc/transport/tcp/tcp_frame.hpp"
#include "lightcc/transport/tcp/tcp_loop.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class TcpSendChannel final : public SendMachine, private EventSink {
 public:
  /// To the receiver that listens on `address`. `hello`: of socket 0.
  static Result<std::unique_ptr<SendChannel>> open(std::shared_ptr<TcpLoop> loop,
                                                   const SocketAddress& address,
                                                   const ChannelHello& hello,
                                                   const ChannelOptions& options);
  /// For open().
  TcpSendChannel(std::shared_ptr<TcpLoop> loop,
                 const ChannelHello& hello,
                 const ChannelOptions& options);
  TcpSendChannel(const TcpSendChannel&) = delete;
  TcpSendChannel& operator=(const TcpSendChannel&) = delete;
  ~TcpSendChannel() override;

 private:
  struct Socket {
    std::unique_ptr<AuthConnector> connector;  ///< Until the connection is up.
    int connector_fd = -1;                     ///< What is watched meanwhile.
    UniqueFd fd;
    WatchToken watch = 0;
    bool writable = false;
    bool busy = false;  ///< The fields below describe a stripe under way.
    RequestId message = 0;
    StripeHeaderBytes header{};
    std::span<const std::byte> payload;
    std::size_t sent = 0;  ///< Sent bytes of header and payload together.
  };

  void on_post() override { (void)pump(); }
  void close() override;
  void on_event(std::uint32_t index, std::uint32_t events) override;
  bool pump() override;
  void on_time(TimePoint now) override;

  Status start_connecting(const SocketAddress& address,
                          const std::string& secret,
                          ChannelHello hello);
  void advance_connector(std::uint32_t index);
  bool has_work() const;
  bool take_stripe(Socket& socket);
  std::size_t write_once(Socket& socket);
  void account(Socket& socket, std::size_t bytes);

  std::shared_ptr<TcpLoop> loop_;
  const TimePoint connect_deadline_;
  const Duration user_timeout_;
  std::vector<Socket> sockets_;
  std::size_t connecting_ = 0;  ///< Sockets that do not stand yet.
  std::size_t turn_ = 0;        ///< The socket that may take the next stripe first.
};

}  // namespace lightcc
