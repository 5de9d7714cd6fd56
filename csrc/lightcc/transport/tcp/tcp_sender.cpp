#include "lightcc/transport/tcp/tcp_sender.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lightcc/transport/tcp/tcp_socket.hpp"

namespace lightcc {
namespace {

// What one pump() writes before other channels get their turn.
constexpr std::size_t kSendBudgetBytes = std::size_t{2} << 20;

}  // namespace

Result<std::unique_ptr<SendChannel>> TcpSendChannel::open(std::shared_ptr<TcpLoop> loop,
                                                          const SocketAddress& address,
                                                          const ChannelHello& hello,
                                                          const ChannelOptions& options) {
  auto channel = std::make_unique<TcpSendChannel>(std::move(loop), hello, options);
  LIGHTCC_RETURN_IF_ERROR(channel->start_connecting(address, options.secret, hello));
  return std::unique_ptr<SendChannel>(std::move(channel));
}

TcpSendChannel::TcpSendChannel(std::shared_ptr<TcpLoop> loop,
                               const ChannelHello& hello,
                               const ChannelOptions& options)
    : SendMachine(hello.channel.destination, kStripeCut),
      loop_(std::move(loop)),
      connect_deadline_(loop_->clock().now() + options.connect_timeout),
      user_timeout_(options.user_timeout),
      sockets_(hello.count),
      connecting_(sockets_.size()) {
  loop_->join(*this);
}

TcpSendChannel::~TcpSendChannel() {
  cancel();
  loop_->leave(*this);
}

Status TcpSendChannel::start_connecting(const SocketAddress& address,
                                        const std::string& secret,
                                        ChannelHello hello) {
  for (std::uint32_t index = 0; index < sockets_.size(); ++index) {
    Socket& socket = sockets_[index];
    hello.index = static_cast<std::uint16_t>(index);
    auto connector = AuthConnector::start(
        address, secret, encode_tcp_hello(hello), connect_deadline_, loop_->clock());
    if (!connector.ok()) {
      return blame(connector.status(), peer());
    }
    socket.connector = std::move(connector).value();
    socket.connector_fd = socket.connector->wait_fd();
    LIGHTCC_ASSIGN_OR_RETURN(socket.watch,
                             loop_->watch(socket.connector_fd, EPOLLIN, *this, index));
  }
  loop_->wake_at(connect_deadline_);
  return {};
}

void TcpSendChannel::advance_connector(std::uint32_t index) {
  Socket& socket = sockets_[index];
  auto connected = socket.connector->poll();
  if (!connected.ok()) {
    fail(connected.status());
    return;
  }
  if (!connected->has_value()) {
    return;
  }
  loop_->unwatch(socket.connector_fd, socket.watch);
  socket.connector.reset();
  socket.fd = std::move(**connected);
  if (const Status tuned = tune_socket(socket.fd.get(), user_timeout_); !tuned.ok()) {
    fail(tuned);
    return;
  }
  // Nothing ever arrives on this socket but its end.
  auto watch = loop_->watch(socket.fd.get(), EPOLLOUT | EPOLLRDHUP | EPOLLET, *this, index);
  if (!watch.ok()) {
    fail(watch.status());
    return;
  }
  socket.watch = *watch;
  socket.writable = true;
  --connecting_;
}

void TcpSendChannel::on_event(std::uint32_t index, std::uint32_t events) {
  if (is_over()) {
    return;
  }
  Socket& socket = sockets_[index];
  if (socket.connector != nullptr) {
    advance_connector(index);
    return;
  }
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    int error_number = 0;
    socklen_t length = sizeof(error_number);
    (void)::getsockopt(socket.fd.get(), SOL_SOCKET, SO_ERROR, &error_number, &length);
    fail(error_number != 0
             ? socket_error(error_number, peer(), "sending to")
             : make_error(ErrorCode::kPeerFailed, "rank %u closed the connection", peer()));
    return;
  }
  socket.writable = true;
}

void TcpSendChannel::on_time(TimePoint now) {
  for (std::uint32_t index = 0; index < sockets_.size() && !is_over(); ++index) {
    if (sockets_[index].connector == nullptr) {
      continue;
    }
    advance_connector(index);
    if (!is_over() && sockets_[index].connector != nullptr) {
      if (now >= connect_deadline_) {
        fail(make_error(ErrorCode::kTimeout, "connecting to rank %u took too long", peer()));
      } else {
        loop_->wake_at(connect_deadline_);
      }
    }
  }
  loop_->enqueue(*this);
}

void TcpSendChannel::close() {
  for (Socket& socket : sockets_) {
    if (socket.connector != nullptr) {
      loop_->unwatch(socket.connector_fd, socket.watch);
      socket.connector.reset();
    }
    if (socket.fd.valid()) {
      loop_->unwatch(socket.fd.get(), socket.watch);
      socket.fd.reset();
    }
    socket.writable = false;
    socket.busy = false;
    socket.payload = {};
  }
}

bool TcpSendChannel::pump() {
  bool moved = false;
  std::size_t left = kSendBudgetBytes;
  std::size_t idle = 0;
  // Socket by socket, one system call each: a message spreads over all of them.
  while (!is_over() && connecting_ == 0 && idle < sockets_.size()) {
    Socket& socket = sockets_[turn_];
    turn_ = (turn_ + 1) % sockets_.size();
    const std::size_t written = write_once(socket);
    if (written == 0) {
      ++idle;
      continue;
    }
    idle = 0;
    moved = true;
    if (written >= left) {
      if (has_work()) {
        loop_->enqueue(*this);
      }
      break;
    }
    left -= written;
  }
  return moved;
}

bool TcpSendChannel::has_work() const {
  return std::ranges::any_of(sockets_, [&](const Socket& socket) {
    return socket.writable && (socket.busy || has_piece());
  });
}

// hot
bool TcpSendChannel::take_stripe(Socket& socket) {
  if (!has_piece()) {
    return false;
  }
  const Piece piece = next_piece();
  const auto length = static_cast<std::uint32_t>(piece.bytes.size());
  encode_stripe_header({piece.message, piece.offset, piece.whole.size(), length}, socket.header);
  socket.payload = piece.bytes;
  socket.message = piece.message;
  socket.sent = 0;
  socket.busy = true;
  take_piece(piece);
  return true;
}

// hot: one system call; returns the bytes that the kernel took.
std::size_t TcpSendChannel::write_once(Socket& socket) {
  if (!socket.writable || (!socket.busy && !take_stripe(socket))) {
    return 0;
  }
  const std::size_t whole = kStripeHeaderBytes + socket.payload.size();
  const std::size_t granted = loop_->grant(whole - socket.sent, *this);
  if (granted == 0) {
    return 0;
  }
  std::array<iovec, 2> parts{};
  std::size_t count = 0;
  std::size_t room = granted;
  if (socket.sent < kStripeHeaderBytes) {
    const std::size_t length = std::min(room, kStripeHeaderBytes - socket.sent);
    parts[count++] = {socket.header.data() + socket.sent, length};
    room -= length;
  }
  const std::size_t start = std::max(socket.sent, kStripeHeaderBytes) - kStripeHeaderBytes;
  const std::size_t length = std::min(room, socket.payload.size() - start);
  if (length > 0) {
    // The kernel only reads; iovec has no const form.
    parts[count++] = {const_cast<std::byte*>(socket.payload.data() + start), length};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  ssize_t written = 0;
  do {
    written = ::sendmsg(socket.fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (written < 0 && errno == EINTR);
  if (written < 0) {
    socket.writable = false;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      fail(socket_error(errno, peer(), "sending to"));
    }
    return 0;
  }
  const auto bytes = static_cast<std::size_t>(written);
  if (bytes < granted) {
    socket.writable = false;  // Full: an event will say when there is room again.
  }
  account(socket, bytes);
  return bytes;
}

void TcpSendChannel::account(Socket& socket, std::size_t bytes) {
  loop_->count_sent(bytes);
  socket.sent += bytes;
  if (socket.sent < kStripeHeaderBytes + socket.payload.size()) {
    return;
  }
  socket.busy = false;
  socket.payload = {};
  finish_piece(socket.message);
}

}  // namespace lightcc
