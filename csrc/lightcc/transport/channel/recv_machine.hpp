// The receiving end of a channel, whatever carries its bytes: sans I/O.
//
// Receives wait in one queue, in the order of the messages. Of each the machine knows where the
// bytes go, how many pieces are missing, and which sender's connections bring them. There are two
// ways to match pieces with receives:
//
// - Pieces that say what they are (TCP) are matched when they come, by begin_piece(). One that
//   nobody has posted a receive for stays where it is, and one that cannot be is the peer's fault.
// - Pieces that are asked for (plugins) come in the order of a PieceCursor, which the transport
//   keeps.
//
// What to derive: on_post(), close(), and of fragments lend() and take_back(). What to call:
// begin_piece() and finish_piece(), and fail() when something went wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/transport/channel/channel_hello.hpp"
#include "lightcc/transport/channel/message_queue.hpp"
#include "lightcc/transport/channel/pieces.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class RecvMachine : public RecvChannel {
 public:
  RecvMachine(const RecvMachine&) = delete;
  RecvMachine& operator=(const RecvMachine&) = delete;
  ~RecvMachine() override;

  /// Runs when the channel is destroyed.
  void set_on_destroyed(std::function<void()> on_destroyed) {
    on_destroyed_ = std::move(on_destroyed);
  }
  /// Whether a connection with this hello belongs to the sender that this channel hears, and is
  /// missing.
  bool lacks(const ChannelHello& hello) const;
  /// Whether a receive waits for connections.
  bool waits_for_sender() const { return !is_over() && missing_ > 0 && !queue_.empty(); }
  /// The attempt of the sender that this channel hears; 0 before the first connection.
  std::uint64_t attempt() const { return sender_.attempt; }

  Result<RequestId> irecv(std::span<std::byte> into) final;
  Result<RequestId> irecv_fragments(std::size_t bytes) final;
  Result<RequestId> irecv_to_sink(std::size_t bytes, const FragmentSink& sink) final;
  Result<std::optional<Fragment>> next_fragment(RequestId request) final;
  void release(const Fragment& fragment) final;
  Result<bool> test(RequestId request) final;
  void cancel() final;

 protected:
  static constexpr std::uint64_t kUncounted = std::numeric_limits<std::uint64_t>::max();
  struct Posted {
    std::span<std::byte> into{};  ///< For irecv().
    std::size_t total = 0;
    bool fragments = false;
    FragmentSink sink{};  ///< For irecv_to_sink(), or without a function.
    /// Not arrived, or not released. Counted when the first one is begun, since until then nobody
    /// may have said how the sender cuts.
    std::uint64_t pieces_left = kUncounted;
    PieceSet begun{};  ///< Pieces that have begun, where pieces say what they are.
  };

  /// Receives from rank `peer`.
  explicit RecvMachine(std::uint32_t peer) : peer_(peer) {}

  /// A receive was posted: what can be received now is received.
  virtual void on_post() = 0;
  /// Closes what is open. Afterwards nothing writes into the memory of receives. A fragment that is
  /// lent stays readable.
  virtual void close() = 0;
  /// Fills in a fragment of `request` (which is posted, for fragments) that has arrived. False:
  /// none.
  virtual bool lend(RequestId request, Fragment* fragment) = 0;
  /// The fragment, of `bytes` bytes, that lend() gave last is no longer in use.
  virtual void take_back(std::size_t bytes) = 0;

  std::uint32_t peer() const { return peer_; }
  bool is_over() const { return queue_.is_over(); }
  const MessageQueue<Posted>& receives() const { return queue_; }

  /// Another connection stands. `cut`: how its sender cuts messages.
  void take_hello(const ChannelHello& hello, const Cut& cut);
  /// Connections that the channel lacks; before the first one, 1.
  std::size_t missing() const { return missing_; }
  const Cut& cut() const { return cut_; }

  /// A piece comes that says of itself: it begins at `offset` (which the cut allows) of `message`,
  /// which has `total` bytes. Null: nobody has posted that yet; or it cannot be, and the channel
  /// is over.
  const Posted* begin_piece(RequestId message, std::uint64_t offset, std::uint64_t total);
  /// The first piece of `message` is asked for.
  void count_pieces(RequestId message) {
    queue_[message].pieces_left = cut_.count(queue_[message].total);
  }
  /// A piece of `message` is done. True when a message is, too.
  bool finish_piece(RequestId message) { return queue_.finish_piece(message); }

  /// The channel is over. The first reason counts; it blames the peer.
  void fail(const Status& why);

 private:
  Result<RequestId> post(Posted posted);

  const std::uint32_t peer_;
  std::function<void()> on_destroyed_;
  ChannelHello sender_;      ///< Its first connection's; empty before there is one.
  std::uint32_t heard_ = 0;  ///< One bit for each of its connections.
  std::size_t missing_ = 1;
  Cut cut_;
  MessageQueue<Posted> queue_;
  std::optional<std::span<const std::byte>> lent_;
};

}  // namespace lightcc
