#include "lightcc/transport/tcp/tcp_acceptor.hpp"

#include <sys/epoll.h>

#include <tuple>
#include <utility>

#include "lightcc/transport/tcp/tcp_socket.hpp"

namespace lightcc {

bool TcpAcceptor::Before::operator()(const ChannelId& a, const ChannelId& b) const {
  return std::tie(a.source, a.destination, a.process_set, a.lane) <
         std::tie(b.source, b.destination, b.process_set, b.lane);
}

Result<std::shared_ptr<TcpAcceptor>> TcpAcceptor::make(std::shared_ptr<TcpLoop> loop,
                                                       std::unique_ptr<AuthListener> listener,
                                                       const TcpAcceptorOptions& options) {
  auto acceptor = std::make_shared<TcpAcceptor>(std::move(loop), std::move(listener), options);
  LIGHTCC_ASSIGN_OR_RETURN(
      acceptor->watch_,
      acceptor->loop_->watch(acceptor->listener_->wait_fd(), EPOLLIN, *acceptor, 0));
  return acceptor;
}

TcpAcceptor::TcpAcceptor(std::shared_ptr<TcpLoop> loop,
                         std::unique_ptr<AuthListener> listener,
                         const TcpAcceptorOptions& options)
    : loop_(std::move(loop)), listener_(std::move(listener)), options_(options) {
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
  const auto found = channels_.find(hello->channel);
  TcpRecvChannel* const channel = found == channels_.end() ? nullptr : found->second;
  if (channel != nullptr && channel->lacks(*hello)) {
    channel->attach(std::move(socket.fd), *hello);
  } else if (channel == nullptr || hello->attempt > channel->attempt()) {
    park(std::move(socket.fd), *hello);
  }
}

void TcpAcceptor::park(UniqueFd fd, const TcpHello& hello) {
  for (auto other = parked_.begin(); other != parked_.end();) {
    if (!(other->hello.channel == hello.channel)) {
      ++other;
      continue;
    }
    if (other->hello.attempt > hello.attempt || other->hello == hello) {
      return;  // Stale, or a duplicate.
    }
    other = other->hello.attempt < hello.attempt ? parked_.erase(other) : std::next(other);
  }
  if (parked_.size() >= options_.max_parked) {
    return;
  }
  const TimePoint now = loop_->clock().now();
  parked_.push_back(Parked{std::move(fd), hello, now});
  loop_->wake_at(parked_.front().since + options_.park_timeout);
}

void TcpAcceptor::on_time(TimePoint now) {
  while (!parked_.empty() && parked_.front().since + options_.park_timeout <= now) {
    parked_.pop_front();
  }
  if (!parked_.empty()) {
    loop_->wake_at(parked_.front().since + options_.park_timeout);
  }
}

Result<std::unique_ptr<RecvChannel>> TcpAcceptor::accept(const ChannelId& id) {
  if (channels_.contains(id)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the channel %u -> %u (process set %u, lane %u) was accepted already",
                      id.source,
                      id.destination,
                      id.process_set,
                      id.lane);
  }
  auto channel = std::make_unique<TcpRecvChannel>(loop_, id);
  channel->set_on_destroyed([acceptor = weak_from_this(), id] {
    if (const auto self = acceptor.lock()) {
      self->channels_.erase(id);
    }
  });
  channels_.emplace(id, channel.get());
  attach_parked(id, *channel);
  return std::unique_ptr<RecvChannel>(std::move(channel));
}

void TcpAcceptor::attach_parked(const ChannelId& id, TcpRecvChannel& channel) {
  for (auto parked = parked_.begin(); parked != parked_.end();) {
    if (parked->hello.channel == id && channel.lacks(parked->hello)) {
      channel.attach(std::move(parked->fd), parked->hello);
      parked = parked_.erase(parked);
    } else {
      ++parked;
    }
  }
}

}  // namespace lightcc
