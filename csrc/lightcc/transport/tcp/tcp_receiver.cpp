#include "lightcc/transport/tcp/tcp_receiver.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lightcc/transport/tcp/tcp_socket.hpp"

namespace lightcc {
namespace {

// What one pump() reads before other channels get their turn.
constexpr std::size_t kPumpBudgetBytes = std::size_t{2} << 20;
// Payloads that are read with their header. More saves little, and moves when it was another's.
constexpr std::size_t kExpectedBytes = std::size_t{64} << 10;

}  // namespace

TcpRecvChannel::TcpRecvChannel(std::shared_ptr<TcpLoop> loop, const ChannelId& id)
    : RecvMachine(id.source), loop_(std::move(loop)) {
  loop_->join(*this);
}

TcpRecvChannel::~TcpRecvChannel() {
  cancel();
  loop_->leave(*this);
}

void TcpRecvChannel::attach(UniqueFd fd, const ChannelHello& hello) {
  take_hello(hello, kStripeCut);
  sockets_.resize(hello.count);
  Socket& socket = sockets_[hello.index];
  auto watch = loop_->watch(fd.get(), EPOLLIN | EPOLLRDHUP | EPOLLET, *this, hello.index);
  if (!watch.ok()) {
    fail(watch.status());
    return;
  }
  socket.fd = std::move(fd);
  socket.watch = *watch;
  // What has arrived already is reported as the watch's first event.
}

void TcpRecvChannel::on_event(std::uint32_t index, std::uint32_t events) {
  Socket& socket = sockets_[index];
  socket.readable = true;
  socket.hung_up = socket.hung_up || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
}

void TcpRecvChannel::on_time(TimePoint) {}

void TcpRecvChannel::close_socket(Socket& socket) {
  if (socket.fd.valid()) {
    loop_->unwatch(socket.fd.get(), socket.watch);
    socket.fd.reset();
  }
  socket.readable = false;
}

void TcpRecvChannel::close() {
  for (Socket& socket : sockets_) {
    close_socket(socket);  // Buffers stay: the caller may still hold a fragment.
    socket.next.reset();
    socket.stripe.reset();
    socket.ahead.clear();
  }
}

bool TcpRecvChannel::pump() {
  if (is_over() || receives().empty()) {
    return false;
  }
  std::size_t left = kPumpBudgetBytes;
  std::size_t idle = 0;
  bool moved = false;
  // Socket by socket, one system call each: none is starved, and none makes the sender lean on it.
  while (!is_over() && idle < sockets_.size()) {
    Socket& socket = sockets_[pump_turn_];
    pump_turn_ = (pump_turn_ + 1) % sockets_.size();
    const std::size_t bytes = read_once(socket, Pull::kNo);
    if (bytes == 0) {
      ++idle;
      continue;
    }
    idle = 0;
    moved = true;
    if (bytes >= left) {
      loop_->enqueue(*this);
      return true;
    }
    left -= bytes;
  }
  check_all_ended();
  return moved;
}

std::byte* TcpRecvChannel::stripe_buffer(Socket& socket) {
  if (socket.buffer == nullptr) {
    socket.buffer = std::make_unique_for_overwrite<CacheLine[]>(  // NOLINT: an array, by name
        kStripeBytes / kFragmentAlignment);
  }
  return reinterpret_cast<std::byte*>(socket.buffer.get());
}

// Whether `socket` is in a stripe whose receive is posted, beginning it if need be.
bool TcpRecvChannel::begin_stripe(Socket& socket) {
  while (!socket.stripe && socket.next) {
    const StripeHeader header = *socket.next;
    if (begin_piece(header.message, header.offset, header.total) == nullptr) {
      return false;
    }
    socket.next.reset();
    socket.header_bytes = 0;
    socket.stripe = header;
    socket.received = 0;
    socket.released = 0;
    if (header.length == 0) {
      finish_stripe(socket);
    }
  }
  return socket.stripe.has_value();
}

void TcpRecvChannel::finish_stripe(Socket& socket) {
  finish_piece(socket.stripe->message);
  socket.stripe.reset();
}

// hot: at most one system call; returns the bytes read, 0 when nothing can be read or used.
std::size_t TcpRecvChannel::read_once(Socket& socket, Pull pull) {
  const bool in_stripe = begin_stripe(socket);
  if ((!socket.readable && !socket.has_ahead()) || (!in_stripe && socket.next)) {
    return 0;
  }
  if (!in_stripe && socket.header_bytes == 0 && !socket.has_ahead()) {
    RequestId message = receives().first();
    while (message < receives().end() && receives()[message].pieces_left != kUncounted) {
      ++message;
    }
    if (message < receives().end() && receives()[message].total <= kExpectedBytes) {
      return read_expected(socket, message);
    }
  }
  std::array<iovec, 2> parts{};
  std::size_t count = 0;
  std::size_t room = 0;
  if (in_stripe) {
    const StripeHeader& stripe = *socket.stripe;
    const Posted& posted = receives()[stripe.message];
    room = stripe.length - socket.received;
    if (room == 0 || (posted.fragments && pull == Pull::kNo)) {
      return 0;  // The caller's move: ask for fragments, or release one.
    }
    std::byte* into = posted.fragments
                          ? stripe_buffer(socket)
                          : posted.into.data() + static_cast<std::size_t>(stripe.offset);
    parts[count++] = {into + socket.received, room};
  }
  const std::size_t header_room = kStripeHeaderBytes - socket.header_bytes;
  parts[count++] = {socket.header.data() + socket.header_bytes, header_room};
  const std::size_t bytes = read_some(socket, std::span(parts).first(count));
  if (bytes > 0) {
    take_bytes(socket, room, bytes);
  }
  return bytes;
}

// hot: reads the next stripe as if it were `message`, of which nothing has begun.
std::size_t TcpRecvChannel::read_expected(Socket& socket, RequestId message) {
  const Posted& posted = receives()[message];
  std::byte* const into = posted.fragments ? stripe_buffer(socket) : posted.into.data();
  const std::size_t room = posted.total;
  StripeHeaderBytes after;  // NOLINT: filled by the read
  const std::array<iovec, 3> parts{
      {{socket.header.data(), kStripeHeaderBytes}, {into, room}, {after.data(), after.size()}}};
  const std::size_t bytes = read_some(socket, parts);
  const std::size_t behind = std::max(bytes, kStripeHeaderBytes) - kStripeHeaderBytes;
  if (bytes > 0) {
    take_bytes(socket, 0, bytes - behind);
  }
  if (behind == 0 || is_over()) {
    return bytes;
  }
  const std::size_t payload = std::min(behind, room);
  if (socket.stripe && socket.stripe->message == message) {
    std::memcpy(socket.header.data(), after.data(), behind - payload);
    take_bytes(socket, payload, behind);
  } else {
    socket.ahead.assign(into, into + payload);
    socket.ahead.insert(socket.ahead.end(), after.begin(), after.end());
    socket.ahead.resize(behind);
    socket.ahead_taken = 0;
  }
  return bytes;
}

std::size_t TcpRecvChannel::read_some(Socket& socket, std::span<const iovec> parts) {
  if (socket.has_ahead()) {
    std::size_t taken = 0;
    for (const iovec& part : parts) {
      const auto left = std::span(socket.ahead).subspan(socket.ahead_taken);
      const std::size_t bytes = std::min(part.iov_len, left.size());
      if (bytes > 0) {
        std::memcpy(part.iov_base, left.data(), bytes);
      }
      socket.ahead_taken += bytes;
      taken += bytes;
    }
    return taken;
  }
  std::size_t room = 0;
  for (const iovec& part : parts) {
    room += part.iov_len;
  }
  ssize_t got = 0;
  do {
    got = ::readv(socket.fd.get(), parts.data(), static_cast<int>(parts.size()));
  } while (got < 0 && errno == EINTR);
  if (got == 0) {
    take_end(socket);
    return 0;
  }
  if (got < 0) {
    socket.readable = false;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      fail(socket_error(errno, peer(), "receiving from"));
    }
    return 0;
  }
  const auto bytes = static_cast<std::size_t>(got);
  loop_->count_received(bytes);
  if (bytes < room) {
    // All that was there; more makes an event. An end that was announced makes none.
    socket.readable = socket.hung_up;
  }
  return bytes;
}

void TcpRecvChannel::take_bytes(Socket& socket, std::size_t payload_room, std::size_t bytes) {
  const std::size_t payload = std::min(bytes, payload_room);
  socket.received += payload;
  socket.header_bytes += bytes - payload;
  if (socket.header_bytes == kStripeHeaderBytes) {
    auto header = decode_stripe_header(socket.header);
    if (!header.ok()) {
      fail(make_error(
          ErrorCode::kPeerFailed, "rank %u sent %s", peer(), header.status().message().c_str()));
      return;
    }
    socket.next = *header;
  }
  if (socket.stripe && socket.received == socket.stripe->length &&
      !receives()[socket.stripe->message].fragments) {
    finish_stripe(socket);
  }
  (void)begin_stripe(socket);
}

void TcpRecvChannel::take_end(Socket& socket) {
  const bool mid_stripe = socket.stripe && socket.received < socket.stripe->length;
  if (mid_stripe || socket.header_bytes > 0) {
    fail(make_error(ErrorCode::kPeerFailed,
                    "rank %u closed the connection in the middle of a message",
                    peer()));
    return;
  }
  close_socket(socket);
}

// When no socket can bring anything any more, what is posted is lost.
void TcpRecvChannel::check_all_ended() {
  if (receives().empty() || sockets_.empty()) {
    return;
  }
  for (const Socket& socket : sockets_) {
    if (socket.fd.valid() || socket.stripe || socket.header_bytes > 0) {
      return;
    }
  }
  const RequestId first = receives().first();
  fail(make_error(ErrorCode::kPeerFailed,
                  "rank %u closed the connection while message %llu (%zu bytes) was expected",
                  peer(),
                  static_cast<unsigned long long>(first),
                  receives()[first].total));
}

bool TcpRecvChannel::lend(RequestId request, Fragment* fragment) {
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    Socket& socket = sockets_[turn_];
    turn_ = (turn_ + 1) % sockets_.size();
    do {
      if (lend_from(socket, request, fragment)) {
        lender_ = &socket;
        return true;
      }
    } while (read_once(socket, Pull::kFragments) > 0);
  }
  check_all_ended();
  return false;
}

// The part of the socket's stripe that has arrived and was not handed out, if it is of `request`.
bool TcpRecvChannel::lend_from(Socket& socket, RequestId request, Fragment* fragment) {
  if (!socket.stripe || socket.stripe->message != request) {
    return false;
  }
  const bool whole = socket.received == socket.stripe->length;
  const std::size_t ready =
      whole ? socket.received : socket.received / kFragmentAlignment * kFragmentAlignment;
  if (ready == socket.released) {
    return false;
  }
  // Offset and start are multiples of 64: stripes start on them, and so did every fragment before.
  fragment->offset = static_cast<std::size_t>(socket.stripe->offset) + socket.released;
  fragment->bytes = {stripe_buffer(socket) + socket.released, ready - socket.released};
  return true;
}

void TcpRecvChannel::take_back(std::size_t bytes) {
  Socket& socket = *lender_;
  socket.released += bytes;
  if (socket.released < socket.stripe->length) {
    return;
  }
  finish_stripe(socket);
  (void)begin_stripe(socket);
  if (!is_over() && (socket.readable || socket.has_ahead()) && !receives().empty()) {
    loop_->enqueue(*this);  // What stood behind the fragment may be an ordinary receive.
  }
}

}  // namespace lightcc
