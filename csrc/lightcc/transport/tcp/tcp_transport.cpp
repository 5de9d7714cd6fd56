#include "lightcc/transport/tcp/tcp_transport.hpp"

#include <netinet/in.h>

#include <cstring>
#include <utility>

#include "lightcc/net/authenticated.hpp"
#include "lightcc/transport/tcp/tcp_acceptor.hpp"
#include "lightcc/transport/tcp/tcp_frame.hpp"
#include "lightcc/transport/tcp/tcp_loop.hpp"
#include "lightcc/transport/tcp/tcp_sender.hpp"

namespace lightcc {
namespace {

constexpr std::int64_t kMaxRate = 1'000'000'000'000'000;

Status check(const TcpTransportOptions& options) {
  LIGHTCC_RETURN_IF_ERROR(options.check("TCP"));
  if (options.rate_bytes_per_s < 0 || options.rate_bytes_per_s > kMaxRate) {
    return make_error(ErrorCode::kInvalidArgument,
                      "TCP rate: %lld bytes per second is out of range",
                      static_cast<long long>(options.rate_bytes_per_s));
  }
  if (options.max_pending == 0) {
    return make_error(ErrorCode::kInvalidArgument, "TCP timeouts and limits must be positive");
  }
  return {};
}

bool is_wildcard(const SocketAddress& address) {
  if (address.family() == AF_INET) {
    sockaddr_in ipv4{};
    std::memcpy(&ipv4, address.data(), sizeof(ipv4));
    return ipv4.sin_addr.s_addr == INADDR_ANY;
  }
  sockaddr_in6 ipv6{};
  std::memcpy(&ipv6, address.data(), sizeof(ipv6));
  return IN6_IS_ADDR_UNSPECIFIED(&ipv6.sin6_addr);
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(TcpTransportOptions options,
               std::shared_ptr<TcpLoop> loop,
               std::unique_ptr<TcpAcceptor> acceptor,
               TransportHandle handle)
      : options_(std::move(options)),
        loop_(std::move(loop)),
        acceptor_(std::move(acceptor)),
        handle_(std::move(handle)) {}

  const TransportHandle& handle() const override { return handle_; }

  Result<std::unique_ptr<SendChannel>> connect(const TransportHandle& handle,
                                               const ChannelId& id) override {
    LIGHTCC_ASSIGN_OR_RETURN(const TcpHandle peer, decode_tcp_handle(handle));
    if (peer.world_id != options_.world_id) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the TCP transport handle of rank %u is of another world",
                        id.destination);
    }
    return TcpSendChannel::open(loop_, peer.address, options_.hello(id, ++attempts_), options_);
  }

  Result<std::unique_ptr<RecvChannel>> accept(const ChannelId& id) override {
    return acceptor_->accept(id);
  }

  Result<bool> poll() override {
    LIGHTCC_ASSIGN_OR_RETURN(const bool moved, loop_->poll());
    LIGHTCC_RETURN_IF_ERROR(acceptor_->take_error());
    return moved;
  }

  bool tells_all() const override { return true; }
  int wait_fd() const override { return loop_->wait_fd(); }
  std::uint64_t bytes_sent() const override { return loop_->bytes_sent(); }
  std::uint64_t bytes_received() const override { return loop_->bytes_received(); }
  std::uint64_t retransmits() const override { return loop_->retransmits(); }

 private:
  const TcpTransportOptions options_;
  std::shared_ptr<TcpLoop> loop_;  ///< Channels share it.
  std::unique_ptr<TcpAcceptor> acceptor_;
  TransportHandle handle_;
  std::uint64_t attempts_ = 0;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpTransportOptions& options) {
  LIGHTCC_RETURN_IF_ERROR(check(options));
  const int family = options.address.family();
  if ((family != AF_INET && family != AF_INET6) || is_wildcard(options.address)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the TCP transport needs the one IP address at which peers reach it, not %s",
                      options.address.to_string().c_str());
  }
  const Clock& clock = options.clock != nullptr ? *options.clock : Clock::system();
  LIGHTCC_ASSIGN_OR_RETURN(auto loop, TcpLoop::make(options.rate_bytes_per_s, clock));
  AuthListenerOptions listener_options;
  listener_options.max_pending = options.max_pending;
  LIGHTCC_ASSIGN_OR_RETURN(
      auto listener,
      AuthListener::listen(options.address, options.secret, listener_options, clock));
  LIGHTCC_ASSIGN_OR_RETURN(auto handle, encode_tcp_handle({options.world_id, listener->address()}));
  LIGHTCC_ASSIGN_OR_RETURN(auto acceptor, TcpAcceptor::make(loop, std::move(listener), options));
  return std::unique_ptr<Transport>(std::make_unique<TcpTransport>(
      options, std::move(loop), std::move(acceptor), std::move(handle)));
}

}  // namespace lightcc
