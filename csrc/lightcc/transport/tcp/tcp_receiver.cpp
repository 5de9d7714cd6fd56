#include "lightcc/transport/tcp/tcp_receiver.hpp"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lightcc/transport/tcp/tcp_socket.hpp"

namespace lightcc {
namespace {

// What one pump() reads before other channels get their turn.
constexpr std::size_t kPumpBudgetBytes = std::size_t{2} << 20;

unsigned long long printable(std::uint64_t value) {
  return value;
}

}  // namespace

TcpRecvChannel::TcpRecvChannel(std::shared_ptr<TcpLoop> loop, const ChannelId& id)
    : loop_(std::move(loop)), id_(id) {
  loop_->join(*this);
}

TcpRecvChannel::~TcpRecvChannel() {
  cancel();
  loop_->leave(*this);
  if (on_destroyed_) {
    on_destroyed_();
  }
}

bool TcpRecvChannel::lacks(const TcpHello& hello) const {
  if (queue_.is_over()) {
    return false;
  }
  if (sockets_.empty()) {
    return true;
  }
  return hello.attempt == attempt_ && hello.socket_count == sockets_.size() &&
         !sockets_[hello.socket_index].attached;
}

void TcpRecvChannel::attach(UniqueFd fd, const TcpHello& hello) {
  if (sockets_.empty()) {
    sockets_.resize(hello.socket_count);
    attempt_ = hello.attempt;
  }
  Socket& socket = sockets_[hello.socket_index];
  auto watch = loop_->watch(fd.get(), EPOLLIN | EPOLLRDHUP | EPOLLET, *this, hello.socket_index);
  if (!watch.ok()) {
    fail(watch.status());
    return;
  }
  socket.fd = std::move(fd);
  socket.watch = *watch;
  socket.attached = true;
  // What has arrived already is reported as the watch's first event.
}

void TcpRecvChannel::on_event(std::uint32_t index, std::uint32_t events) {
  Socket& socket = sockets_[index];
  socket.readable = true;
  socket.hung_up = socket.hung_up || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
}

void TcpRecvChannel::on_time(TimePoint) {}

Result<RequestId> TcpRecvChannel::irecv(std::span<std::byte> into) {
  return post(Posted{into, into.size(), false, stripe_count(into.size()), StripeSet(into.size())});
}

Result<RequestId> TcpRecvChannel::irecv_fragments(std::size_t bytes) {
  return post(Posted{{}, bytes, true, stripe_count(bytes), StripeSet(bytes)});
}

Result<RequestId> TcpRecvChannel::post(Posted posted) {
  if (queue_.is_over()) {
    return queue_.error();
  }
  const RequestId request = queue_.push(std::move(posted));
  (void)pump();
  if (queue_.is_over() && !queue_.is_done(request)) {
    return queue_.error();
  }
  return request;
}

Result<bool> TcpRecvChannel::test(RequestId request) {
  if (const Posted* posted = queue_.find(request); posted != nullptr && posted->pieces_left == 0) {
    return true;  // Ahead of one that was posted earlier.
  }
  return queue_.test(request, "a receive that was never posted");
}

void TcpRecvChannel::cancel() {
  fail(make_error(ErrorCode::kShutDown, "the channel from rank %u was cancelled", id_.source));
  queue_.forget_done();
}

void TcpRecvChannel::close(Socket& socket) {
  if (socket.fd.valid()) {
    loop_->unwatch(socket.fd.get(), socket.watch);
    socket.fd.reset();
  }
  socket.readable = false;
}

void TcpRecvChannel::fail(const Status& status) {
  for (Socket& socket : sockets_) {
    close(socket);  // Buffers stay: the caller may still hold a fragment.
    socket.next.reset();
    socket.stripe.reset();
  }
  queue_.fail(blame(status, id_.source));
}

void TcpRecvChannel::break_protocol(const Status& what) {
  fail(make_error(ErrorCode::kPeerFailed, "rank %u sent %s", id_.source, what.message().c_str()));
}

bool TcpRecvChannel::pump() {
  if (queue_.is_over() || queue_.empty()) {
    return false;
  }
  std::size_t left = kPumpBudgetBytes;
  std::size_t idle = 0;
  bool moved = false;
  // Socket by socket, one system call each: none is starved, and none makes the sender lean on it.
  while (!queue_.is_over() && idle < sockets_.size()) {
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

// Whether `socket` is in a stripe whose receive is posted, beginning it if need be.
bool TcpRecvChannel::begin_stripe(Socket& socket) {
  while (!socket.stripe && socket.next) {
    const StripeHeader header = *socket.next;
    if (header.message >= queue_.end()) {
      return false;
    }
    Posted* posted = queue_.find(header.message);
    if (posted != nullptr && header.total != posted->total) {
      break_protocol(make_error(ErrorCode::kPeerFailed,
                                "message %llu of %llu bytes where %llu were expected",
                                printable(header.message),
                                printable(header.total),
                                printable(posted->total)));
      return false;
    }
    if (posted == nullptr || !posted->seen.insert(header.offset)) {
      break_protocol(make_error(ErrorCode::kPeerFailed,
                                "byte %llu of message %llu twice",
                                printable(header.offset),
                                printable(header.message)));
      return false;
    }
    socket.next.reset();
    socket.header_bytes = 0;
    socket.stripe = header;
    socket.received = 0;
    socket.released = 0;
    if (header.length == 0) {
      finish_stripe(socket);
    } else if (posted->fragments && socket.buffer == nullptr) {
      socket.buffer = std::make_unique_for_overwrite<CacheLine[]>(  // NOLINT: an array, by name
          kStripeBytes / kFragmentAlignment);
    }
  }
  return socket.stripe.has_value();
}

void TcpRecvChannel::finish_stripe(Socket& socket) {
  queue_.finish_piece(socket.stripe->message);
  socket.stripe.reset();
}

// hot: one system call; returns the bytes read, 0 when nothing can be read or used.
std::size_t TcpRecvChannel::read_once(Socket& socket, Pull pull) {
  const bool in_stripe = begin_stripe(socket);
  if (!socket.readable || (!in_stripe && socket.next)) {
    return 0;
  }
  std::array<iovec, 2> parts{};
  std::size_t count = 0;
  std::size_t room = 0;
  if (in_stripe) {
    const StripeHeader& stripe = *socket.stripe;
    const Posted& posted = queue_[stripe.message];
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
  ssize_t got = 0;
  do {
    got = ::readv(socket.fd.get(), parts.data(), static_cast<int>(count));
  } while (got < 0 && errno == EINTR);
  if (got == 0) {
    take_end(socket);
    return 0;
  }
  if (got < 0) {
    socket.readable = false;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      fail(socket_error(errno, id_.source, "receiving from"));
    }
    return 0;
  }
  const auto bytes = static_cast<std::size_t>(got);
  if (bytes < room + header_room) {
    // All that was there; more makes an event. An end that was announced makes none.
    socket.readable = socket.hung_up;
  }
  take_bytes(socket, room, bytes);
  return bytes;
}

void TcpRecvChannel::take_bytes(Socket& socket, std::size_t payload_room, std::size_t bytes) {
  loop_->count_received(bytes);
  const std::size_t payload = std::min(bytes, payload_room);
  socket.received += payload;
  socket.header_bytes += bytes - payload;
  if (socket.header_bytes == kStripeHeaderBytes) {
    auto header = decode_stripe_header(socket.header);
    if (!header.ok()) {
      break_protocol(header.status());
      return;
    }
    socket.next = *header;
  }
  if (socket.stripe && socket.received == socket.stripe->length &&
      !queue_[socket.stripe->message].fragments) {
    finish_stripe(socket);
  }
  (void)begin_stripe(socket);
}

void TcpRecvChannel::take_end(Socket& socket) {
  const bool mid_stripe = socket.stripe && socket.received < socket.stripe->length;
  if (mid_stripe || socket.header_bytes > 0) {
    fail(make_error(ErrorCode::kPeerFailed,
                    "rank %u closed the connection in the middle of a message",
                    id_.source));
    return;
  }
  socket.ended = true;
  close(socket);
}

// When no socket can bring anything any more, what is posted is lost.
void TcpRecvChannel::check_all_ended() {
  if (queue_.empty() || sockets_.empty()) {
    return;
  }
  for (const Socket& socket : sockets_) {
    const bool useful = !socket.ended || socket.stripe || socket.header_bytes > 0;
    if (socket.attached && useful) {
      return;
    }
  }
  fail(make_error(ErrorCode::kPeerFailed,
                  "rank %u closed the connection while message %llu (%llu bytes) was expected",
                  id_.source,
                  printable(queue_.first()),
                  printable(queue_[queue_.first()].total)));
}

Result<std::optional<Fragment>> TcpRecvChannel::next_fragment(RequestId request) {
  if (queue_.is_done(request)) {
    return std::optional<Fragment>();
  }
  if (queue_.is_over()) {
    return queue_.error();
  }
  const Posted* posted = queue_.find(request);
  if (posted == nullptr || !posted->fragments || lent_) {
    return make_error(ErrorCode::kInvalidArgument,
                      lent_ ? "next_fragment() before release() of the last one"
                            : "next_fragment() of a request that irecv_fragments() did not make");
  }
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    const std::size_t index = turn_;
    turn_ = (turn_ + 1) % sockets_.size();
    do {
      if (auto fragment = lend(index, request)) {
        return fragment;
      }
    } while (read_once(sockets_[index], Pull::kFragments) > 0);
  }
  check_all_ended();
  if (queue_.is_over() && !queue_.is_done(request)) {
    return queue_.error();
  }
  return std::optional<Fragment>();
}

// The part of the socket's stripe that has arrived and was not handed out, if it is of `request`.
std::optional<Fragment> TcpRecvChannel::lend(std::size_t socket_index, RequestId request) {
  const Socket& socket = sockets_[socket_index];
  if (!socket.stripe || socket.stripe->message != request) {
    return std::nullopt;
  }
  const bool whole = socket.received == socket.stripe->length;
  const std::size_t ready =
      whole ? socket.received : socket.received / kFragmentAlignment * kFragmentAlignment;
  if (ready == socket.released) {
    return std::nullopt;
  }
  // Offset and start are multiples of 64: stripes start on them, and so did every fragment before.
  const std::span<const std::byte> bytes(stripe_buffer(socket) + socket.released,
                                         ready - socket.released);
  lent_ = Lent{socket_index, bytes};
  return Fragment{static_cast<std::size_t>(socket.stripe->offset) + socket.released, bytes};
}

void TcpRecvChannel::release(const Fragment& fragment) {
  if (!lent_) {
    return;
  }
  const Lent lent = *std::exchange(lent_, std::nullopt);
  if (queue_.is_over()) {
    return;
  }
  if (fragment.bytes.data() != lent.bytes.data() || fragment.bytes.size() != lent.bytes.size()) {
    fail(make_error(ErrorCode::kInvalidArgument, "release() of something else than the fragment"));
    return;
  }
  Socket& socket = sockets_[lent.socket];
  socket.released += lent.bytes.size();
  if (socket.released < socket.stripe->length) {
    return;
  }
  finish_stripe(socket);
  (void)begin_stripe(socket);
  if (!queue_.is_over() && socket.readable && !queue_.empty()) {
    loop_->enqueue(*this);  // What stood behind the fragment may be an ordinary receive.
  }
}

}  // namespace lightcc
