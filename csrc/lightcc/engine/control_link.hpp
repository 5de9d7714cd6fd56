// One edge of the control tree: frames over a shared-memory ring pair (ranks of one host) or over
// an authenticated TCP socket (hosts). Never blocks; what does not fit waits in a backlog.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/transport/shm/byte_ring.hpp"
#include "lightcc/transport/shm/doorbell.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// Two-way bytes, as far as they go now.
class ByteStream {
 public:
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;
  /// Bytes moved, 0 when none can be now. kPeerFailed when the other end is gone.
  virtual Result<std::size_t> read_some(std::span<std::byte> into) = 0;
  virtual Result<std::size_t> write_some(std::span<const std::byte> bytes) = 0;
  /// Something was written. `urgent`: also wakes a rank that is idle (doorbell.hpp).
  virtual void wake_peer(bool urgent) = 0;
  /// Nothing will be written any more: the other end reads what was, then the end.
  virtual void finish_writing() = 0;
  /// The socket, or -1: news comes by doorbell.
  virtual int fd() const = 0;
};

/// `peer` is rung after every read (which makes room) and by wake_peer().
std::unique_ptr<ByteStream> make_ring_stream(ByteRingReader incoming,
                                             ByteRingWriter outgoing,
                                             Doorbell peer);
/// `fd`: a connected non-blocking stream socket.
std::unique_ptr<ByteStream> make_socket_stream(UniqueFd fd);

/// Thread: the one that drives the progress loop.
class ControlLink {
 public:
  /// `peer_rank` is named in errors.
  ControlLink(std::unique_ptr<ByteStream> stream, int peer_rank);

  int peer_rank() const { return peer_rank_; }
  /// The socket to wait on, or -1 for links in shared memory.
  int fd() const { return stream_->fd(); }
  /// Queues a frame and sends what can be sent. `urgent`: the peer must act on it even if it has
  /// nothing outstanding. Errors: kPeerFailed.
  Status send(const Frame& frame, bool urgent);
  /// The same with a frame that encode_frame() made.
  Status send_encoded(std::span<const std::byte> frame, bool urgent);
  /// Sends more of the backlog. True when something was sent.
  Result<bool> flush();
  /// Says that this end has sent its last frame.
  void finish_sending() { stream_->finish_writing(); }
  /// The peer is gone: nothing is read from here, nor sent, any more.
  void mark_broken() { is_broken_ = true; }
  bool is_broken() const { return is_broken_; }
  bool has_backlog() const { return sent_ < backlog_.size(); }
  /// The next whole frame, or nothing for now: a socket may tell of its end, or have more, at the
  /// next call. Errors: kPeerFailed when the peer is gone (after its last frame was delivered) or
  /// sent nonsense.
  Result<std::optional<Frame>> receive();

 private:
  Result<std::optional<Frame>> parse_one();
  void drop_parsed();

  std::unique_ptr<ByteStream> stream_;
  int peer_rank_;
  Bytes backlog_;
  std::size_t sent_ = 0;
  bool is_broken_ = false;
  bool urgent_ = false;  // Something in the backlog is.
  Bytes inbox_;
  std::size_t parsed_ = 0;
  bool is_drained_ = false;  // The last read took all that the socket had.
};

}  // namespace lightcc
