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
  if (!error_.ok()) {
    return error_;
  }
  if (queue_.empty()) {
    progressed_ = loop_->attended();
  }
  queue_.push_back(
      {{const_cast<std::byte*>(data.data()), data.size()}, piece_count(data.size(), piece_bytes_)});
  const RequestId request = next_++;
  (void)advance();
  if (!error_.ok()) {
    return error_;
  }
  loop_->expect_work();
  return request;
}

Result<bool> PluginSendChannel::test(RequestId request) {
  if (!cancelled_ && request < first_) {
    return true;
  }
  if (!error_.ok()) {
    return error_;
  }
  if (request >= next_) {
    return make_error(ErrorCode::kInvalidArgument, "test() of a send that was never posted");
  }
  return false;
}

void PluginSendChannel::cancel() {
  fail(make_error(ErrorCode::kShutDown, "the channel to rank %u was cancelled", peer_));
  cancelled_ = true;
}

void PluginSendChannel::fail(const Status& status) {
  if (error_.ok()) {
    error_ = {status.code(), status.message(), static_cast<int>(peer_)};
  }
  for (Connection& connection : connections_) {
    connection.comm.reset();
  }
  queue_.clear();
}

bool PluginSendChannel::is_active() const {
  // The hellos go out, message or not: the peer may be waiting for its connections.
  return error_.ok() && (!queue_.empty() || greeting_ > 0);
}

bool PluginSendChannel::pump() {
  const bool moved = advance();
  if (moved) {
    progressed_ = loop_->attended();
  } else if (error_.ok() && is_late()) {
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
    if (error_.ok() && !connection.has_greeted) {
      moved = advance_connection(connection) || moved;
    }
    if (error_.ok() && connection.comm != nullptr) {
      moved = settle(connection) || moved;
    }
  }
  return (error_.ok() && post_pieces()) || moved;
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
  --queue_[static_cast<std::size_t>(message - first_)].pieces_left;
  bool finished = false;
  while (!queue_.empty() && queue_.front().pieces_left == 0) {
    queue_.pop_front();
    ++first_;
    finished = true;
  }
  for (Connection& connection : connections_) {
    if (finished && connection.comm != nullptr) {
      connection.comm->forget_idle();
    }
  }
}

// hot
bool PluginSendChannel::post_pieces() {
  bool moved = false;
  while (cut_message_ < next_) {
    Connection& connection = connections_[turn_];
    if (!connection.has_greeted || connection.comm->is_full()) {
      break;
    }
    const std::span<std::byte> data = queue_[static_cast<std::size_t>(cut_message_ - first_)].data;
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
