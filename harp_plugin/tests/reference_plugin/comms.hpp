// The two ends of one connection: TCP sockets that carry messages one way.
//
// Socket 0 carries a header and then the message; of messages from 64 KiB on, every other socket
// carries its share (wire.hpp). All sockets are in message order, each at its own pace, and are
// moved on by isend(), irecv() and test() of the thread that drives the comm. There is no other
// thread.
//
// A message goes to the oldest receive that has a free buffer with its tag. One that finds none
// waits in memory; headers are read only while a posted buffer is free, so that this happens only
// to messages that overtake, never to those that merely come early.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "plugin/core.hpp"
#include "socket.hpp"
#include "wire.hpp"

namespace reftcp {

using harp::abi::Result;
using harp::plugin::RecvBuffer;
using harp::plugin::Request;

/// Host memory only; a registration is a name for a range.
template <typename Base>
class TcpComm : public Base {
 public:
  Result reg_mr(void* data, std::size_t bytes, int type, void** mr) override;
  Result dereg_mr(void* mr) override;

 protected:
  explicit TcpComm(std::vector<UniqueFd> sockets) : sockets_(std::move(sockets)) {}

  /// Says in NCCL's log what ended the comm, once, and returns `result` from then on.
  Result fail(Result result, const char* why, int error);

  std::vector<UniqueFd> sockets_;
  Result broken_ = Result::kSuccess;
};

class TcpSendComm final : public TcpComm<harp::plugin::SendComm> {
 public:
  explicit TcpSendComm(std::vector<UniqueFd> sockets);
  Result isend(const void* data, std::size_t bytes, int tag, void* mr, Request** request) override;

 private:
  /// Enough for a full set of requests on each of the receives of a group.
  static constexpr std::size_t kRequests =
      std::size_t{harp::abi::kMaxRequests} * harp::plugin::kMaxGroupedReceives;

  struct Send final : Request {
    Result test(bool* done, int* bytes) override;

    TcpSendComm* comm = nullptr;
    const std::byte* data = nullptr;
    Header header;
    std::size_t sockets_left = 0;
    bool is_free = true;
  };
  struct Cursor {
    std::uint64_t message = 0;   ///< The one that this socket is in, counted from 0.
    std::size_t done_bytes = 0;  ///< Finished bytes of its share, header included.
  };

  Result progress();
  /// Sends what the socket takes.
  Result push(std::size_t index);

  std::array<Send, kRequests> sends_;
  std::uint64_t next_message_ = 0;
  std::vector<Cursor> cursors_;
};

class TcpRecvComm final : public TcpComm<harp::plugin::RecvComm> {
 public:
  /// `max_recvs` 1: tags do not matter.
  TcpRecvComm(std::vector<UniqueFd> sockets, int max_recvs);
  Result irecv(std::span<const RecvBuffer> buffers, Request** request) override;
  Result iflush(std::span<const RecvBuffer> buffers, Request** request) override;

 private:
  static constexpr std::size_t kRequests = harp::abi::kMaxRequests;
  static constexpr std::size_t kMostWaitingBytes = std::size_t{256} << 20;

  struct Recv final : Request {
    Result test(bool* done, int* bytes) override;

    TcpRecvComm* comm = nullptr;
    std::array<RecvBuffer, harp::plugin::kMaxGroupedReceives> buffers{};
    std::array<int, harp::plugin::kMaxGroupedReceives> received{};
    std::array<bool, harp::plugin::kMaxGroupedReceives> is_taken{};
    std::size_t count = 0;
    std::size_t buffers_left = 0;  ///< Not complete.
    std::size_t buffers_open = 0;  ///< Not yet matched with a message.
    std::uint64_t posted_as = 0;
    bool is_free = true;
  };
  /// A message whose header was read and whose bytes have not all been.
  struct Incoming {
    Header header;
    std::byte* into = nullptr;
    std::unique_ptr<std::byte[]> waiting;  // NOLINT(modernize-avoid-c-arrays): uninitialised bytes
    Recv* recv = nullptr;                  ///< Null: nobody asked for it yet.
    std::size_t slot = 0;
    std::size_t sockets_left = 0;
  };
  struct Cursor {
    std::uint64_t message = 0;
    std::size_t done_bytes = 0;
  };

  Result progress();
  Result pull(std::size_t index);
  /// Reads the next header; false: not all of it is there.
  Result read_header(bool* complete);
  Result put(Incoming* message);
  bool match(const Header& header, Recv* candidate, std::size_t* slot) const;
  Result assign(Incoming* message, Recv* recv, std::size_t slot);
  void finish(Incoming* message);
  bool anything_open() const;
  Incoming& incoming(std::uint64_t message) {
    return incoming_[static_cast<std::size_t>(message - first_incoming_)];
  }

  bool uses_tags_;
  std::array<Recv, kRequests> recvs_;
  std::uint64_t next_recv_ = 0;
  std::deque<Incoming> incoming_;  ///< Messages from first_incoming_ on.
  std::uint64_t first_incoming_ = 0;
  std::size_t waiting_bytes_ = 0;
  Header partial_header_;
  std::size_t partial_bytes_ = 0;
  std::vector<Cursor> cursors_;
};

}  // namespace reftcp
