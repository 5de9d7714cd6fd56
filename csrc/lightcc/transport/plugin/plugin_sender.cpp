#include "lightcc/transport/plugin/plugin_sender.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace lightcc {
namespace {

constexpr std::uint64_t kHelloCookie = std::numeric_limits<std::uint64_t>::max();

}  // namespace

PluginSendChannel::PluginSendChannel(std::shared_ptr<PluginLoop> loop,
                                     const PluginSenderOptions& options)
    : loop_(std::move(loop)),
      context_(options.context),
      device_(options.device),
      peer_(options.hello.channel.destination),
      piece_bytes_(options.hello.piece_bytes),
      connect_timeout_(options.connect_timeout),
      user_timeout_(options.user_timeout),
      connections_(options.hello.count),
      greeting_(connections_.size()),
      progressed_(loop_->attended()) {
  PluginHello hello = options.hello;
  for (Connection& connection : connections_) {
    connection.handle = options.peer.handle;
    connection.hello = encode_plugin_hello(hello, options.secret, options.peer.nonce);
    ++hello.index;
  }
  loop_->join(*this);
  loop_->expect_work();
}

PluginSendChannel::~PluginSendChannel() {
  cancel();
  loop_->leave(*this);
}

Result<RequestId> PluginSendChannel::isend(std::span<const std::byte> data) {
  if (queue_.is_over()) {
    return queue_.error();
  }
  if (queue_.empty()) {
    progressed_ = loop_->attended();
  }
  const RequestId request = queue_.push(
      {{const_cast<std::byte*>(data.data()), data.size()}, piece_count(data.size(), piece_bytes_)});
  (void)advance();
  if (queue_.is_over()) {
    return queue_.error();
  }
  loop_->expect_work();
  return request;
}

Result<bool> PluginSendChannel::test(RequestId request) {
  return queue_.test(request, "a send that was never posted");
}

void PluginSendChannel::cancel() {
  fail(make_error(ErrorCode::kShutDown, "the channel to rank %u was cancelled", peer_));
  queue_.forget_done();
}

void PluginSendChannel::fail(const Status& status) {
  for (Connection& connection : connections_) {
    connection.comm.reset();
  }
  queue_.fail({status.code(), status.message(), static_cast<int>(peer_)});
}

bool PluginSendChannel::is_active() const {
  // The hellos go out, message or not: the peer may be waiting for its connections.
  return !queue_.is_over() && (!queue_.empty() || greeting_ > 0);
}

bool PluginSendChannel::pump() {
  const bool moved = advance();
  if (moved) {
    progressed_ = loop_->attended();
  } else if (!queue_.is_over() && is_late()) {
    fail(make_error(ErrorCode::kTimeout,
                    greeting_ > 0 ? "connecting to rank %u took too long"
                                  : "rank %u takes nothing of what is sent to it",
                    peer_));
    return true;
  }
  return moved;
}

bool PluginSendChannel::is_late() const {
  return loop_->attended() - progressed_ > (greeting_ > 0 ? connect_timeout_ : user_timeout_);
}

bool PluginSendChannel::advance() {
  bool moved = false;
  for (Connection& connection : connections_) {
    if (!queue_.is_over() && !connection.has_greeted) {
      moved = advance_connection(connection) || moved;
    }
    if (!queue_.is_over() && connection.comm != nullptr) {
      moved = settle(connection) || moved;
    }
  }
  return (!queue_.is_over() && post_pieces()) || moved;
}

bool PluginSendChannel::advance_connection(Connection& connection) {
  if (connection.comm == nullptr) {
    void* comm = nullptr;
    const auto result =
        context_->table().connect(context_->get(), device_, connection.handle.data(), &comm);
    if (result != abi::Result::kSuccess) {
      const Status why = plugin_error(ErrorCode::kPeerFailed, context_->table(), "connect", result);
      fail(make_error(
          ErrorCode::kPeerFailed, "connecting to rank %u: %s", peer_, why.message().c_str()));
      return true;
    }
    if (comm == nullptr) {
      return false;
    }
    connection.comm = std::make_unique<PluginComm>(context_, comm, PluginComm::Kind::kSend, peer_);
    std::ranges::copy(connection.hello, connection.comm->small_memory().begin());
  }
  const auto memory = connection.comm->small_memory();
  const auto posted =
      connection.comm->post(memory.first<kPluginHelloBytes>(), memory, kHelloCookie);
  if (!posted.ok()) {
    fail(posted.status());
    return true;
  }
  if (*posted) {
    connection.has_greeted = true;
    --greeting_;
  }
  return *posted;
}

// hot
bool PluginSendChannel::settle(Connection& connection) {
  bool moved = false;
  while (!connection.comm->is_idle()) {
    PluginComm::Done done;
    const auto settled = connection.comm->settle_oldest(&done);
    if (!settled.ok()) {
      fail(settled.status());
      return true;
    }
    if (!*settled) {
      break;
    }
    moved = true;
    if (done.cookie != kHelloCookie) {
      finish_piece(done.cookie);
    }
  }
  return moved;
}

void PluginSendChannel::finish_piece(RequestId message) {
  if (!queue_.finish_piece(message)) {
    return;
  }
  for (Connection& connection : connections_) {
    if (connection.comm != nullptr) {
      connection.comm->forget_idle();
    }
  }
}

// hot
bool PluginSendChannel::post_pieces() {
  bool moved = false;
  while (cut_message_ < queue_.end()) {
    Connection& connection = connections_[turn_];
    if (!connection.has_greeted || connection.comm->is_full()) {
      break;
    }
    const std::span<std::byte> data = queue_[cut_message_].data;
    const PieceOfMessage piece(data, cut_offset_, piece_bytes_);
    const auto posted = connection.comm->post(piece.bytes, piece.registered, cut_message_);
    if (!posted.ok()) {
      fail(posted.status());
      return true;
    }
    if (!*posted) {
      break;
    }
    moved = true;
    loop_->count_sent(piece.bytes.size());
    turn_ = (turn_ + 1) % connections_.size();
    cut_offset_ += piece.bytes.size();
    if (piece.is_last(piece_bytes_)) {
      ++cut_message_;
      cut_offset_ = 0;
    }
  }
  return moved;
}

}  // namespace lightcc
