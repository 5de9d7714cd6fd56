#include "lightcc/transport/tcp/tcp_acceptor.hpp"

#include <sys/epoll.h>

#include <utility>

#include "lightcc/transport/tcp/tcp_socket.hpp"

namespace lightcc {

Result<std::unique_ptr<TcpAcceptor>> TcpAcceptor::make(std::shared_ptr<TcpLoop> loop,
                                                       std::unique_ptr<AuthListener> listener,
                                                       const ChannelOptions& options) {
  auto acceptor = std::make_unique<TcpAcceptor>(std::move(loop), std::move(listener), options);
  LIGHTCC_ASSIGN_OR_RETURN(
      acceptor->watch_,
      acceptor->loop_->watch(acceptor->listener_->wait_fd(), EPOLLIN, *acceptor, 0));
  return acceptor;
}

TcpAcceptor::TcpAcceptor(std::shared_ptr<TcpLoop> loop,
                         std::unique_ptr<AuthListener> listener,
                         const ChannelOptions& options)
    : loop_(std::move(loop)),
      listener_(std::move(listener)),
      options_(options),
      directory_(options.max_parked) {
  loop_->join(*this);
}

TcpAcceptor::~TcpAcceptor() {
  loop_->unwatch(listener_->wait_fd(), watch_);
  loop_->leave(*this);
}

// At once, not in pump(): a channel that is pumped in the same poll() must not take the end of one
// socket for the end of the channel while another of its sockets waits here.
void TcpAcceptor::on_event(std::uint32_t, std::uint32_t) {
  while (true) {
    auto socket = listener_->poll();
    if (!socket.ok()) {
      error_ = socket.status();
      return;
    }
    if (!socket->has_value()) {
      const Status shortage = listener_->shortage();
      if (!shortage.ok() &&
          directory_.any_channel([](const auto& channel) { return channel.waits_for_sender(); })) {
        error_ = shortage;  // The sender gives up later, and would blame this rank for silence.
      }
      return;
    }
    admit(std::move(**socket));
  }
}

Status TcpAcceptor::take_error() {
  return std::exchange(error_, Status());
}

void TcpAcceptor::admit(AuthenticatedSocket socket) {
  auto hello = decode_tcp_hello(socket.hello);
  if (!hello.ok() || hello->world_id != options_.world_id ||
      !tune_socket(socket.fd.get(), options_.user_timeout).ok()) {
    return;
  }
  directory_.admit(std::move(socket.fd), *hello, loop_->clock().now());
  set_alarm();
}

void TcpAcceptor::set_alarm() {
  if (const auto oldest = directory_.oldest_parked()) {
    loop_->wake_at(*oldest + options_.park_timeout);
  }
}

void TcpAcceptor::on_time(TimePoint now) {
  directory_.drop_parked([&](TimePoint since) { return since + options_.park_timeout <= now; });
  set_alarm();
}

Result<std::unique_ptr<RecvChannel>> TcpAcceptor::accept(const ChannelId& id) {
  LIGHTCC_ASSIGN_OR_RETURN(auto channel, directory_.accept(id, loop_, id));
  return std::unique_ptr<RecvChannel>(std::move(channel));
}

}  // namespace lightcc
