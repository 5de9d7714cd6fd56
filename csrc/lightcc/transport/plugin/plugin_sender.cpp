#include "lightcc/transport/plugin/plugin_sender.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace lightcc {
namespace {

constexpr std::uint64_t kHelloCookie = std::numeric_limits<std::uint64_t>::max();

// The ABI has no const; what is sent is only read.
std::span<std::byte> writable(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

PluginSendChannel::PluginSendChannel(std::shared_ptr<PluginLoop> loop,
                                     const PluginSenderOptions& sender,
                                     const ChannelOptions& options)
    : SendMachine(sender.hello.channel.destination, piece_cut(sender.hello.piece_bytes)),
      loop_(std::move(loop)),
      context_(sender.context),
      device_(sender.device),
      piece_bytes_(sender.hello.piece_bytes),
      connect_timeout_(options.connect_timeout),
      user_timeout_(options.user_timeout),
      connections_(sender.hello.count),
      greeting_(connections_.size()),
      progressed_(loop_->attended()) {
  ChannelHello hello = sender.hello;
  for (Connection& connection : connections_) {
    connection.handle = sender.peer.handle;
    connection.hello = encode_plugin_hello(hello, options.secret, sender.peer.nonce);
    ++hello.index;
  }
  loop_->join(*this);
  loop_->expect_work();
}

PluginSendChannel::~PluginSendChannel() {
  cancel();
  loop_->leave(*this);
}

void PluginSendChannel::on_post() {
  if (outstanding() == 1) {
    progressed_ = loop_->attended();
  }
  (void)advance();
  if (!is_over()) {
    loop_->expect_work();
  }
}

void PluginSendChannel::close() {
  for (Connection& connection : connections_) {
    connection.comm.reset();
  }
}

bool PluginSendChannel::is_active() const {
  // The hellos go out, message or not: the peer may be waiting for its connections.
  return !is_over() && (outstanding() > 0 || greeting_ > 0);
}

bool PluginSendChannel::pump() {
  const bool moved = advance();
  if (moved) {
    progressed_ = loop_->attended();
  } else if (!is_over() && is_late()) {
    fail(make_error(ErrorCode::kTimeout,
                    greeting_ > 0 ? "connecting to rank %u took too long"
                                  : "rank %u takes nothing of what is sent to it",
                    peer()));
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
    if (!is_over() && !connection.has_greeted) {
      moved = advance_connection(connection) || moved;
    }
    if (!is_over() && connection.comm != nullptr) {
      moved = settle(connection) || moved;
    }
  }
  return (!is_over() && post_pieces()) || moved;
}

bool PluginSendChannel::advance_connection(Connection& connection) {
  if (connection.comm == nullptr) {
    void* comm = nullptr;
    const auto result =
        context_->table().connect(context_->get(), device_, connection.handle.data(), &comm);
    if (result != abi::Result::kSuccess) {
      const Status why = plugin_error(ErrorCode::kPeerFailed, context_->table(), "connect", result);
      fail(make_error(
          ErrorCode::kPeerFailed, "connecting to rank %u: %s", peer(), why.message().c_str()));
      return true;
    }
    if (comm == nullptr) {
      return false;
    }
    connection.comm = std::make_unique<PluginComm>(context_, comm, PluginComm::Kind::kSend, peer());
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
      settle_piece(done.cookie);
    }
  }
  return moved;
}

void PluginSendChannel::settle_piece(RequestId message) {
  if (!finish_piece(message)) {
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
  while (has_piece()) {
    Connection& connection = connections_[turn_];
    if (!connection.has_greeted || connection.comm->is_full()) {
      break;
    }
    const Piece piece = next_piece();
    const auto posted =
        connection.comm->post(writable(piece.bytes),
                              writable(registered_part(piece.whole, piece.offset, piece_bytes_)),
                              piece.message);
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
    take_piece(piece);
  }
  return moved;
}

}  // namespace lightcc
