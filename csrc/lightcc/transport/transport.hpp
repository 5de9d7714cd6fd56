// The contract of the inter-host byte mover.
//
// It has the shape of NCCL's net plugin API (listen, connect, accept, isend, irecv, test), with
// what an event-driven engine needs on top: channels that exist at once and connect in the
// background, wait_fd() to sleep on, cancel(), and receiving by fragments, which are lent or go to
// a sink, so that a reduction can read straight out of the transport's own buffers instead of a
// staging copy.
//
// A channel carries messages one way, in order, without loss; the receiver must know each message's
// length. Everything is non-blocking and belongs to the thread that drives the progress loop.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lightcc/base/status.hpp"

namespace lightcc {

/// What connect() needs to reach a listening transport: opaque, at most 256 bytes, exchanged when
/// the world is made.
using TransportHandle = std::vector<std::byte>;

/// Names a one-way channel between two ranks of one world. Both ends must give the same.
struct ChannelId {
  std::uint32_t source = 0;       ///< World rank that sends.
  std::uint32_t destination = 0;  ///< World rank that receives.
  std::uint32_t process_set = 0;
  std::uint32_t lane = 0;
  auto operator<=>(const ChannelId&) const = default;
};

/// Identifies a message on its channel: 0, 1, 2, ... in posting order.
using RequestId = std::uint64_t;

/// Sends messages. Destroying it drops what is queued and closes the channel.
class SendChannel {
 public:
  SendChannel() = default;
  SendChannel(const SendChannel&) = delete;
  SendChannel& operator=(const SendChannel&) = delete;
  virtual ~SendChannel() = default;

  /// Queues `data` as one message (empty is allowed). It must stay valid and unchanged until test()
  /// says true or the channel is cancelled. Sends before the connection is up just wait.
  virtual Result<RequestId> isend(std::span<const std::byte> data) = 0;
  /// Whether `request` is done: its memory may be reused. Requests finish in order.
  virtual Result<bool> test(RequestId request) = 0;
  /// Drops everything queued; afterwards no caller memory is touched and every call fails.
  virtual void cancel() = 0;
};

/// A piece of an incoming message, in the transport's memory.
struct Fragment {
  std::size_t offset = 0;            ///< Where it begins in the message; a multiple of 64.
  std::span<const std::byte> bytes;  ///< 64-byte aligned start; a multiple of 64 long unless last.
};

/// Receives a message as it arrives, in the transport's memory.
struct FragmentSink {
  /// The fragment is the callee's until it returns; its bytes are aligned to 8.
  void (*take)(void* context, const Fragment& fragment) = nullptr;
  void* context = nullptr;
};

/// Receives messages in the order sent.
class RecvChannel {
 public:
  RecvChannel() = default;
  RecvChannel(const RecvChannel&) = delete;
  RecvChannel& operator=(const RecvChannel&) = delete;
  virtual ~RecvChannel() = default;

  /// Receives the next message into `into`, which must have exactly its length (else kPeerFailed).
  virtual Result<RequestId> irecv(std::span<std::byte> into) = 0;
  /// Receives the next message, of `bytes` bytes, through next_fragment().
  virtual Result<RequestId> irecv_fragments(std::size_t bytes) = 0;
  /// The next fragment of `request`, in any order of offsets, every byte exactly once; nothing when
  /// none has arrived. It must be released before the next one of this channel is asked for.
  virtual Result<std::optional<Fragment>> next_fragment(RequestId request) = 0;
  virtual void release(const Fragment& fragment) = 0;
  /// Whether there is irecv_to_sink(), which spares a copy where the transport cannot lend.
  virtual bool can_receive_to_sink() const { return false; }
  /// Receives the next message, of `bytes` bytes, through `sink`: each byte once, in any order of
  /// offsets, one call at a time, but by any thread, until test() says that it is done or the
  /// channel is cancelled.
  virtual Result<RequestId> irecv_to_sink(std::size_t bytes, const FragmentSink& sink);
  /// Whether all of `request` has arrived (and, for fragments, was released).
  virtual Result<bool> test(RequestId request) = 0;
  /// As SendChannel::cancel().
  virtual void cancel() = 0;
};

inline Result<RequestId> RecvChannel::irecv_to_sink(std::size_t /*bytes*/,
                                                    const FragmentSink& /*sink*/) {
  return make_error(ErrorCode::kUnimplemented, "this transport has no sinks");
}

/// Errors of all calls: kPeerFailed (with the rank) when the other end closed, reset or broke the
/// protocol, kTimeout when it stayed silent, kSystem when the operating system refused.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  /// Where peers reach this transport.
  virtual const TransportHandle& handle() const = 0;
  /// Opens the sending end towards the transport that `handle` names.
  virtual Result<std::unique_ptr<SendChannel>> connect(const TransportHandle& handle,
                                                       const ChannelId& id) = 0;
  /// Opens the receiving end; it comes alive when the peer's connect() arrives, before or after.
  virtual Result<std::unique_ptr<RecvChannel>> accept(const ChannelId& id) = 0;
  /// Moves what can be moved on all channels. True when anything moved.
  virtual Result<bool> poll() = 0;
  /// For a caller that is about to sleep on wait_fd(): poll() moved nothing since it last asked
  /// for anything.
  virtual void prepare_to_wait() {}
  /// Whether wait_fd() is readable whenever poll() has something to do, even without
  /// prepare_to_wait().
  virtual bool tells_all() const { return false; }
  /// After prepare_to_wait(), readable whenever poll() has something to do; -1: the caller must
  /// poll while requests are outstanding.
  virtual int wait_fd() const = 0;
  /// Bytes handed to and taken from the network so far, headers included.
  virtual std::uint64_t bytes_sent() const = 0;
  virtual std::uint64_t bytes_received() const = 0;
  /// Packets that were sent again, on connections that stand; 0 where the transport cannot know.
  virtual std::uint64_t retransmits() const { return 0; }
};

}  // namespace lightcc
