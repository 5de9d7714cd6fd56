// The sending end of a channel, whatever carries its bytes: sans I/O.
//
// Messages wait in one queue and are cut into pieces, which the transport takes one after another
// for whichever connection it likes. A message is done when all its pieces are, and those before
// it. What a piece needs in order to be done is the transport's business, and so are connections
// and deadlines.
//
// What to derive: on_post() and close(). What to call: next_piece(), take_piece() and
// finish_piece(), and fail() when something went wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/base/status.hpp"
#include "lightcc/transport/channel/message_queue.hpp"
#include "lightcc/transport/channel/pieces.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class SendMachine : public SendChannel {
 public:
  Result<RequestId> isend(std::span<const std::byte> data) final;
  Result<bool> test(RequestId request) final;
  void cancel() final;

 protected:
  struct Piece {
    RequestId message = 0;
    std::size_t offset = 0;            ///< In `whole`.
    std::span<const std::byte> bytes;  ///< The bytes of the piece.
    std::span<const std::byte> whole;  ///< The message.
  };

  /// Sends to rank `peer`.
  SendMachine(std::uint32_t peer, const Cut& cut) : peer_(peer), cut_(cut) {}

  /// A message was posted: what can be sent now is sent.
  virtual void on_post() = 0;
  /// Closes what is open. Afterwards nothing touches the memory of messages.
  virtual void close() = 0;

  std::uint32_t peer() const { return peer_; }
  bool is_over() const { return queue_.is_over(); }
  /// Messages that are not done.
  std::size_t outstanding() const { return queue_.size(); }

  /// Whether there is a piece that was not taken.
  bool has_piece() const { return next_.message() < queue_.end(); }
  // hot
  /// The next one. Call only when has_piece().
  Piece next_piece() const {
    const std::span<const std::byte> whole = queue_[next_.message()].data;
    const std::size_t offset = next_.offset();
    return {
        next_.message(), offset, whole.subspan(offset, cut_.length(whole.size(), offset)), whole};
  }
  /// `piece`, the next one, is on its way.
  void take_piece(const Piece& piece) { next_.step(cut_, piece.whole.size()); }
  /// A piece of `message` is done. True when a message is, too.
  bool finish_piece(RequestId message) { return queue_.finish_piece(message); }

  /// The channel is over. The first reason counts; it blames the peer.
  void fail(const Status& why);

 private:
  struct Message {
    std::span<const std::byte> data;
    std::uint64_t pieces_left = 0;
  };

  const std::uint32_t peer_;
  const Cut cut_;
  MessageQueue<Message> queue_;
  PieceCursor next_;
};

}  // namespace lightcc
