// The receiving end of a TCP channel.
//
// Each socket carries stripes (tcp_frame.hpp) in sending order; the receiver places them by offset,
// so the sockets need not keep step. A socket whose next stripe belongs to a message that nobody
// has posted is left alone until it is: TCP's own window then holds the sender back, and nothing is
// buffered here. Stripes of an earlier message never stand behind that stripe, so this cannot lock
// up.
//
// irecv() reads into the caller's memory, as data arrives. irecv_fragments() reads when the caller
// asks: next_fragment() fills the socket's stripe buffer and hands it out while it is in the cache.
// One read takes the rest of a stripe and the header behind it.
//
// A message's last byte may arrive with the peer's close behind it; an end of stream counts only
// when a receive is posted that can no longer be completed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lightcc/base/unique_fd.hpp"
#include "lightcc/transport/message_queue.hpp"
#include "lightcc/transport/tcp/tcp_frame.hpp"
#include "lightcc/transport/tcp/tcp_loop.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class TcpRecvChannel final : public RecvChannel, private EventSink {
 public:
  TcpRecvChannel(std::shared_ptr<TcpLoop> loop, const ChannelId& id);
  TcpRecvChannel(const TcpRecvChannel&) = delete;
  TcpRecvChannel& operator=(const TcpRecvChannel&) = delete;
  ~TcpRecvChannel() override;

  /// Runs when the channel is destroyed.
  void set_on_destroyed(std::function<void()> on_destroyed) {
    on_destroyed_ = std::move(on_destroyed);
  }
  /// Whether a socket with this hello belongs to the sender that this channel hears, and is
  /// missing.
  bool lacks(const TcpHello& hello) const;
  /// The attempt of the sender that this channel hears; 0 before the first socket.
  std::uint64_t attempt() const { return attempt_; }
  /// Whether a receive is posted and not all sockets have come.
  bool waits_for_sender() const {
    return !queue_.empty() && (attempt_ == 0 || !std::ranges::all_of(sockets_, &Socket::attached));
  }
  /// Takes a socket that the channel lacks.
  void attach(UniqueFd fd, const TcpHello& hello);

  Result<RequestId> irecv(std::span<std::byte> into) override;
  Result<RequestId> irecv_fragments(std::size_t bytes) override;
  Result<std::optional<Fragment>> next_fragment(RequestId request) override;
  void release(const Fragment& fragment) override;
  Result<bool> test(RequestId request) override;
  void cancel() override;

 private:
  struct alignas(kFragmentAlignment) CacheLine {
    std::byte bytes[kFragmentAlignment];  // NOLINT(modernize-avoid-c-arrays)
  };
  struct Posted {
    std::span<std::byte> into;  ///< Unused for fragments.
    std::uint64_t total = 0;
    bool fragments = false;
    std::uint64_t pieces_left = 0;
    StripeSet seen;
  };
  struct Socket {
    UniqueFd fd;
    WatchToken watch = 0;
    bool attached = false;
    bool ended = false;     ///< The peer closed between two stripes.
    bool readable = false;  ///< Reading may give something.
    bool hung_up = false;   ///< The end of the stream, or an error, is to be read.
    StripeHeaderBytes header{};
    std::size_t header_bytes = 0;
    std::optional<StripeHeader> next;    ///< A whole header, whose payload has not begun.
    std::optional<StripeHeader> stripe;  ///< The stripe being received or handed out.
    std::size_t received = 0;            ///< Of the stripe's payload.
    std::size_t released = 0;            ///< Of the stripe's payload, for fragments.
    /// One stripe, for fragments.
    std::unique_ptr<CacheLine[]> buffer;  // NOLINT(modernize-avoid-c-arrays)
  };
  struct Lent {
    std::size_t socket = 0;
    std::span<const std::byte> bytes;
  };
  static std::byte* stripe_buffer(const Socket& socket) {
    return reinterpret_cast<std::byte*>(socket.buffer.get());
  }
  enum class Pull : std::uint8_t { kNo, kFragments };

  void on_event(std::uint32_t index, std::uint32_t events) override;
  bool pump() override;
  void on_time(TimePoint now) override;

  Result<RequestId> post(Posted posted);
  bool begin_stripe(Socket& socket);
  void finish_stripe(Socket& socket);
  std::size_t read_once(Socket& socket, Pull pull);
  void take_bytes(Socket& socket, std::size_t payload_room, std::size_t bytes);
  void take_end(Socket& socket);
  std::optional<Fragment> lend(std::size_t socket_index, RequestId request);
  void check_all_ended();
  void close(Socket& socket);
  void fail(const Status& status);
  void break_protocol(const Status& what);

  std::shared_ptr<TcpLoop> loop_;
  const ChannelId id_;
  std::function<void()> on_destroyed_;
  std::uint64_t attempt_ = 0;
  std::vector<Socket> sockets_;
  std::size_t pump_turn_ = 0;  ///< The socket that pump() looks at first.
  std::size_t turn_ = 0;       ///< The socket that next_fragment() looks at first.
  MessageQueue<Posted> queue_;
  std::optional<Lent> lent_;
};

}  // namespace lightcc
