// The in-process transport: one queue of packets per channel, under one mutex.
//
// poll() of the sending side cuts queued messages into packets and puts COPIES of them on the link;
// poll() of the receiving side takes them off into the memory of its requests. So each side touches
// only its own callers' memory and only in its own thread, as over a socket, and a message handed
// to a link survives its sender. A link holds a bounded number of bytes, so that algorithms that
// would deadlock on full socket buffers deadlock here too. Fragments are freed on release(), so
// that AddressSanitizer sees who reads them later.
//
// Invariant: the packets of a link are in message order and cover each message exactly once.
// Not handled: sleeping (no wait_fd) and speed (everything is one lock).
#include "doubles/loopback_transport.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/mutex.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/transport/transport.hpp"

#include "doubles/fault_plan.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kLineBytes = 64;

struct alignas(kLineBytes) Line {
  std::array<std::byte, kLineBytes> bytes;
};

/// A piece of a message on its way.
struct Packet {
  std::size_t message_bytes = 0;
  std::size_t offset = 0;
  std::size_t size_bytes = 0;
  std::vector<Line> lines;
  std::uint64_t ready_at = 0;  ///< In polls of the receiver.

  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(lines)).first(size_bytes);
  }
};

/// One channel between its two ends. Guarded by the hub's mutex.
struct Link {
  bool has_sender = false;
  bool has_receiver = false;
  bool sender_closed = false;
  bool receiver_closed = false;
  bool cut = false;
  bool stalled = false;
  std::deque<Packet> packets;
  std::size_t bytes_held = 0;
  std::uint64_t receiver_polls = 0;
};

Status peer_failed(std::uint32_t rank, const std::string& what) {
  return {
      ErrorCode::kPeerFailed, "rank " + std::to_string(rank) + " " + what, static_cast<int>(rank)};
}

Status cancelled() {
  return {ErrorCode::kShutDown, "the channel was cancelled"};
}

}  // namespace

struct LoopbackHub::State {
  explicit State(const FaultPlan& fault_plan) : plan(fault_plan), random(fault_plan.seed()) {}

  std::uint64_t random_up_to(std::uint64_t maximum) LIGHTCC_REQUIRES(mutex) {
    return std::uniform_int_distribution<std::uint64_t>(0, maximum)(random);
  }
  /// The link that the next end of this kind joins: a new one when the current one already has it.
  std::shared_ptr<Link> join(const ChannelId& id, bool Link::* end) LIGHTCC_REQUIRES(mutex) {
    auto& link = links[id];
    if (link == nullptr || (*link).*end) {
      link = std::make_shared<Link>();
    }
    (*link).*end = true;
    return link;
  }

  mutable Mutex mutex;
  FaultPlan plan LIGHTCC_GUARDED_BY(mutex);
  std::mt19937_64 random LIGHTCC_GUARDED_BY(mutex);
  std::map<ChannelId, std::shared_ptr<Link>> links LIGHTCC_GUARDED_BY(mutex);
};

namespace {

using State = LoopbackHub::State;

/// What a transport shares with its channels.
class Endpoint;

class LoopbackSend final : public SendChannel {
 public:
  LoopbackSend(std::shared_ptr<Endpoint> endpoint, std::shared_ptr<Link> link, const ChannelId& id);
  LoopbackSend(const LoopbackSend&) = delete;
  LoopbackSend& operator=(const LoopbackSend&) = delete;
  ~LoopbackSend() override;

  Result<RequestId> isend(std::span<const std::byte> data) override;
  Result<bool> test(RequestId request) override;
  void cancel() override;
  /// Puts what fits on the link; true when anything moved.
  bool move(State& state) LIGHTCC_REQUIRES(state.mutex);

 private:
  struct Outgoing {
    std::span<const std::byte> data;
    std::size_t sent = 0;
  };
  bool send_piece(State& state) LIGHTCC_REQUIRES(state.mutex);
  void close();

  std::shared_ptr<Endpoint> endpoint_;
  std::shared_ptr<Link> link_;
  ChannelId id_;
  std::deque<Outgoing> queue_;
  std::uint64_t done_ = 0;  ///< Messages that are on the link as a whole.
  Status status_;
  bool cancelled_ = false;
};

class LoopbackRecv final : public RecvChannel {
 public:
  LoopbackRecv(std::shared_ptr<Endpoint> endpoint, std::shared_ptr<Link> link, const ChannelId& id);
  LoopbackRecv(const LoopbackRecv&) = delete;
  LoopbackRecv& operator=(const LoopbackRecv&) = delete;
  ~LoopbackRecv() override;

  Result<RequestId> irecv(std::span<std::byte> into) override;
  Result<RequestId> irecv_fragments(std::size_t bytes) override;
  Result<std::optional<Fragment>> next_fragment(RequestId request) override;
  void release(const Fragment& fragment) override;
  Result<bool> test(RequestId request) override;
  void cancel() override;
  /// Takes what has arrived off the link; true when anything moved. With the hub's mutex held.
  bool move();

 private:
  struct Incoming {
    std::span<std::byte> into;
    bool by_fragments = false;
    std::size_t bytes = 0;
    bool started = false;  ///< An empty message arrives too.
    std::size_t arrived = 0;
    std::size_t consumed = 0;  ///< Released, or written to `into`.
  };
  Result<RequestId> post(const Incoming& request);
  bool take_packet();
  bool retire();
  void close();

  std::shared_ptr<Endpoint> endpoint_;
  std::shared_ptr<Link> link_;
  ChannelId id_;
  std::deque<Incoming> queue_;
  std::uint64_t done_ = 0;
  std::vector<Packet> fragments_;  ///< Arrived for the first request, not given out.
  std::optional<Packet> lent_;
  Status status_;
  bool cancelled_ = false;
};

class Endpoint {
 public:
  explicit Endpoint(std::shared_ptr<State> hub) : state(std::move(hub)) {}

  std::shared_ptr<State> state;
  std::vector<LoopbackSend*> senders;
  std::vector<LoopbackRecv*> receivers;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
};

LoopbackSend::LoopbackSend(std::shared_ptr<Endpoint> endpoint,
                           std::shared_ptr<Link> link,
                           const ChannelId& id)
    : endpoint_(std::move(endpoint)), link_(std::move(link)), id_(id) {
  endpoint_->senders.push_back(this);
}

LoopbackSend::~LoopbackSend() {
  close();
  std::erase(endpoint_->senders, this);
}

void LoopbackSend::close() {
  queue_.clear();
  const MutexLock lock(endpoint_->state->mutex);
  link_->sender_closed = true;
}

void LoopbackSend::cancel() {
  close();
  cancelled_ = true;
  if (status_.ok()) {
    status_ = cancelled();
  }
}

Result<RequestId> LoopbackSend::isend(std::span<const std::byte> data) {
  if (!status_.ok()) {
    return status_;
  }
  queue_.push_back({.data = data});
  return done_ + queue_.size() - 1;
}

Result<bool> LoopbackSend::test(RequestId request) {
  if (request < done_ && !cancelled_) {
    return true;
  }
  if (!status_.ok()) {
    return status_;
  }
  if (request >= done_ + queue_.size()) {
    return make_error(ErrorCode::kInvalidArgument, "test of a send that was never posted");
  }
  return false;
}

bool LoopbackSend::send_piece(State& state) {
  Outgoing& message = queue_.front();
  const std::size_t rest = message.data.size() - message.sent;
  std::size_t piece = rest;
  if (state.plan.most_fragment_bytes() != 0) {
    const std::size_t lines = state.plan.most_fragment_bytes() / kLineBytes;
    piece = std::min(rest, (1 + state.random_up_to(lines - 1)) * kLineBytes);
  }
  const std::size_t room = state.plan.capacity_bytes() - link_->bytes_held;
  if (piece > room) {
    piece = room / kLineBytes * kLineBytes;
    if (piece == 0) {
      return false;
    }
  }
  if (piece == rest && state.plan.fire(FaultPlan::LinkFaultKind::kCut, id_, done_)) {
    link_->cut = true;
    link_->packets.clear();
    return true;
  }
  if (piece != rest) {
    state.plan.note_fragmented();
  }
  Packet packet{
      .message_bytes = message.data.size(),
      .offset = message.sent,
      .size_bytes = piece,
      .lines = std::vector<Line>((piece + kLineBytes - 1) / kLineBytes),
      .ready_at = link_->receiver_polls + state.random_up_to(state.plan.most_delay_polls())};
  if (piece != 0) {
    std::memcpy(packet.lines.data(), message.data.data() + message.sent, piece);
  }
  if (packet.ready_at > link_->receiver_polls + 1) {
    state.plan.note_delayed();
  }
  link_->packets.push_back(std::move(packet));
  // Every packet takes at least a line, so that empty messages are bounded too.
  link_->bytes_held += std::max(piece, kLineBytes);
  endpoint_->bytes_sent += piece;
  message.sent += piece;
  if (piece == rest) {
    queue_.pop_front();
    ++done_;
  }
  return true;
}

bool LoopbackSend::move(State& state) {
  bool moved = false;
  while (status_.ok() && !queue_.empty()) {
    if (state.plan.due(FaultPlan::LinkFaultKind::kStall, id_, done_)) {
      state.plan.fire(FaultPlan::LinkFaultKind::kStall, id_, done_);
      link_->stalled = true;
    }
    if (link_->cut || link_->receiver_closed) {
      status_ = peer_failed(id_.destination, link_->cut ? "was cut off" : "closed the channel");
      queue_.clear();
      return true;
    }
    if (link_->bytes_held >= state.plan.capacity_bytes() || !send_piece(state)) {
      break;
    }
    moved = true;
  }
  return moved;
}

LoopbackRecv::LoopbackRecv(std::shared_ptr<Endpoint> endpoint,
                           std::shared_ptr<Link> link,
                           const ChannelId& id)
    : endpoint_(std::move(endpoint)), link_(std::move(link)), id_(id) {
  endpoint_->receivers.push_back(this);
}

LoopbackRecv::~LoopbackRecv() {
  close();
  std::erase(endpoint_->receivers, this);
}

void LoopbackRecv::close() {
  queue_.clear();
  fragments_.clear();
  lent_.reset();
  const MutexLock lock(endpoint_->state->mutex);
  link_->receiver_closed = true;
}

void LoopbackRecv::cancel() {
  close();
  cancelled_ = true;
  if (status_.ok()) {
    status_ = cancelled();
  }
}

Result<RequestId> LoopbackRecv::post(const Incoming& request) {
  if (!status_.ok()) {
    return status_;
  }
  queue_.push_back(request);
  return done_ + queue_.size() - 1;
}

Result<RequestId> LoopbackRecv::irecv(std::span<std::byte> into) {
  return post({.into = into, .bytes = into.size()});
}

Result<RequestId> LoopbackRecv::irecv_fragments(std::size_t bytes) {
  return post({.into = {}, .by_fragments = true, .bytes = bytes});
}

Result<std::optional<Fragment>> LoopbackRecv::next_fragment(RequestId request) {
  if (!status_.ok() && (cancelled_ || request >= done_)) {
    return status_;
  }
  if (lent_.has_value()) {
    return make_error(ErrorCode::kInvalidArgument, "the previous fragment was not released");
  }
  if (request != done_ || fragments_.empty()) {
    return std::optional<Fragment>();
  }
  std::size_t index = 0;
  {
    State& state = *endpoint_->state;
    const MutexLock lock(state.mutex);
    if (state.plan.most_fragment_bytes() != 0) {
      index = state.random_up_to(fragments_.size() - 1);
    }
  }
  lent_ = std::move(fragments_[index]);
  fragments_.erase(fragments_.begin() + static_cast<std::ptrdiff_t>(index));
  return std::optional<Fragment>({.offset = lent_->offset, .bytes = lent_->bytes()});
}

void LoopbackRecv::release(const Fragment& fragment) {
  if (!lent_.has_value() || queue_.empty() || fragment.offset != lent_->offset) {
    return;
  }
  queue_.front().consumed += lent_->size_bytes;
  lent_.reset();
  retire();
}

Result<bool> LoopbackRecv::test(RequestId request) {
  if (request < done_ && !cancelled_) {
    return true;
  }
  if (!status_.ok()) {
    return status_;
  }
  if (request >= done_ + queue_.size()) {
    return make_error(ErrorCode::kInvalidArgument, "test of a receive that was never posted");
  }
  return false;
}

bool LoopbackRecv::retire() {
  if (queue_.empty() || !queue_.front().started ||
      queue_.front().consumed != queue_.front().bytes) {
    return false;
  }
  queue_.pop_front();
  ++done_;
  return true;
}

bool LoopbackRecv::take_packet() {
  Incoming& request = queue_.front();
  if (link_->cut) {
    status_ = peer_failed(id_.source, "was cut off");
    return false;
  }
  if (link_->packets.empty()) {
    if (link_->sender_closed && request.arrived < request.bytes + (request.started ? 0 : 1)) {
      status_ = peer_failed(id_.source, "closed the channel");
    }
    return false;
  }
  Packet& packet = link_->packets.front();
  if (link_->stalled || packet.ready_at > link_->receiver_polls ||
      (request.started && request.arrived == request.bytes)) {
    return false;
  }
  if (packet.message_bytes != request.bytes) {
    status_ = peer_failed(id_.source,
                          "sent a message of " + std::to_string(packet.message_bytes) +
                              " bytes where " + std::to_string(request.bytes) + " were expected");
    return false;
  }
  request.started = true;
  request.arrived += packet.size_bytes;
  endpoint_->bytes_received += packet.size_bytes;
  link_->bytes_held -= std::max(packet.size_bytes, kLineBytes);
  if (!request.by_fragments) {
    if (packet.size_bytes != 0) {
      std::memcpy(request.into.data() + packet.offset, packet.lines.data(), packet.size_bytes);
    }
    request.consumed += packet.size_bytes;
  } else if (packet.size_bytes != 0) {
    fragments_.push_back(std::move(packet));
  }
  link_->packets.pop_front();
  return true;
}

bool LoopbackRecv::move() {
  ++link_->receiver_polls;
  bool moved = false;
  while (status_.ok() && !queue_.empty() && take_packet()) {
    moved = true;
    retire();
  }
  if (!status_.ok() && !queue_.empty()) {
    queue_.clear();
    fragments_.clear();
    moved = true;
  }
  return moved;
}

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<State> state, std::uint32_t rank)
      : rank_(rank),
        handle_(LoopbackHub::handle_of(rank)),
        endpoint_(std::make_shared<Endpoint>(std::move(state))) {}

  const TransportHandle& handle() const override { return handle_; }

  Result<std::unique_ptr<SendChannel>> connect(const TransportHandle& handle,
                                               const ChannelId& id) override {
    if (id.source != rank_ || handle != LoopbackHub::handle_of(id.destination)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "connect: the handle does not fit the channel");
    }
    State& state = *endpoint_->state;
    const MutexLock lock(state.mutex);
    auto link = state.join(id, &Link::has_sender);
    return std::unique_ptr<SendChannel>(
        std::make_unique<LoopbackSend>(endpoint_, std::move(link), id));
  }

  Result<std::unique_ptr<RecvChannel>> accept(const ChannelId& id) override {
    if (id.destination != rank_) {
      return make_error(ErrorCode::kInvalidArgument, "accept: the channel ends elsewhere");
    }
    State& state = *endpoint_->state;
    const MutexLock lock(state.mutex);
    auto link = state.join(id, &Link::has_receiver);
    return std::unique_ptr<RecvChannel>(
        std::make_unique<LoopbackRecv>(endpoint_, std::move(link), id));
  }

  Result<bool> poll() override {
    State& state = *endpoint_->state;
    const MutexLock lock(state.mutex);
    bool moved = false;
    for (LoopbackSend* channel : endpoint_->senders) {
      moved |= channel->move(state);
    }
    for (LoopbackRecv* channel : endpoint_->receivers) {
      moved |= channel->move();
    }
    return moved;
  }

  int wait_fd() const override { return -1; }
  std::uint64_t bytes_sent() const override { return endpoint_->bytes_sent; }
  std::uint64_t bytes_received() const override { return endpoint_->bytes_received; }

 private:
  std::uint32_t rank_;
  TransportHandle handle_;
  std::shared_ptr<Endpoint> endpoint_;
};

}  // namespace

LoopbackHub::LoopbackHub(const FaultPlan& plan) : state_(std::make_shared<State>(plan)) {}

std::unique_ptr<Transport> LoopbackHub::make_transport(std::uint32_t rank) {
  return std::make_unique<LoopbackTransport>(state_, rank);
}

TransportHandle LoopbackHub::handle_of(std::uint32_t rank) {
  const auto bytes = std::as_bytes(std::span(&rank, 1));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> LoopbackHub::unfired_faults() const {
  const MutexLock lock(state_->mutex);
  return state_->plan.unfired();
}

}  // namespace lightcc
