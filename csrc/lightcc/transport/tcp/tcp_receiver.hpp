// The receiving end of a TCP channel.
//
// Each socket carries stripes (tcp_frame.hpp) in sending order; what is posted (recv_machine.hpp)
// is found by their headers, so the sockets need not keep step. A socket whose next stripe belongs
// to a message that nobody has posted is left alone until it is: TCP's own window then holds the
// sender back, and nothing is buffered here. Stripes of an earlier message never stand behind that
// stripe, so this cannot lock up.
//
// One read takes a header, what most likely follows it, and the next header: the payload of the
// first message that has not begun goes to where it belongs. If another message follows, the bytes
// move to the socket's `ahead`, and are taken from there as from the kernel.
//
// irecv() reads into the caller's memory, as data arrives. irecv_fragments() reads when the caller
// asks: next_fragment() fills the socket's stripe buffer and hands it out while it is in the cache.
// Small messages are there already, by the read of their header.
//
// A message's last byte may arrive with the peer's close behind it; an end of stream counts only
// when a receive is posted that can no longer be completed.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lightcc/base/unique_fd.hpp"
#include "lightcc/transport/channel/recv_machine.hpp"
#include "lightcc/transport/tcp/tcp_frame.hpp"
#include "lightcc/transport/tcp/tcp_loop.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class TcpRecvChannel final : public RecvMachine, private EventSink {
 public:
  TcpRecvChannel(std::shared_ptr<TcpLoop> loop, const ChannelId& id);
  TcpRecvChannel(const TcpRecvChannel&) = delete;
  TcpRecvChannel& operator=(const TcpRecvChannel&) = delete;
  ~TcpRecvChannel() override;

  /// Takes a socket that the channel lacks.
  void attach(UniqueFd fd, const ChannelHello& hello);

 private:
  struct alignas(kFragmentAlignment) CacheLine {
    std::byte bytes[kFragmentAlignment];  // NOLINT(modernize-avoid-c-arrays)
  };
  struct Socket {
    UniqueFd fd;
    WatchToken watch = 0;
    bool readable = false;  ///< Reading may give something.
    bool hung_up = false;   ///< The end of the stream, or an error, is to be read.
    StripeHeaderBytes header{};
    std::size_t header_bytes = 0;
    std::optional<StripeHeader> next;    ///< A whole header, whose payload has not begun.
    std::optional<StripeHeader> stripe;  ///< The stripe being received or handed out.
    std::size_t received = 0;            ///< Received bytes of its payload.
    std::size_t released = 0;            ///< Released bytes of its payload, for fragments.
    /// One stripe, for fragments.
    std::unique_ptr<CacheLine[]> buffer;  // NOLINT(modernize-avoid-c-arrays)
    Bytes ahead;                          ///< Read from the kernel, and expected elsewhere.
    std::size_t ahead_taken = 0;          ///< Bytes of `ahead` that were taken from it.
    bool has_ahead() const { return ahead_taken < ahead.size(); }
  };
  /// Memory for one stripe.
  static std::byte* stripe_buffer(Socket& socket);
  enum class Pull : std::uint8_t { kNo, kFragments };

  void on_post() override { (void)pump(); }
  void close() override;
  bool lend(RequestId request, Fragment* fragment) override;
  void take_back(std::size_t bytes) override;
  void on_event(std::uint32_t index, std::uint32_t events) override;
  bool pump() override;
  void on_time(TimePoint now) override;

  bool begin_stripe(Socket& socket);
  void finish_stripe(Socket& socket);
  std::size_t read_once(Socket& socket, Pull pull);
  std::size_t read_expected(Socket& socket, RequestId message);
  std::size_t read_some(Socket& socket, std::span<const iovec> parts);
  void take_bytes(Socket& socket, std::size_t payload_room, std::size_t bytes);
  void take_end(Socket& socket);
  static bool lend_from(Socket& socket, RequestId request, Fragment* fragment);
  void check_all_ended();
  void close_socket(Socket& socket);

  std::shared_ptr<TcpLoop> loop_;
  std::vector<Socket> sockets_;
  std::size_t pump_turn_ = 0;  ///< The socket that pump() looks at first.
  std::size_t turn_ = 0;       ///< The socket that next_fragment() looks at first.
  Socket* lender_ = nullptr;   ///< Whose fragment is lent.
};

}  // namespace lightcc
