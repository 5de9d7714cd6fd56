// The two ends of one connection: a TCP socket that carries messages one way, each behind a header.
// It is moved on by isend(), irecv() and test() of the thread that drives the comm. There is no
// other thread.
//
// A message goes to the oldest receive that has a free buffer with its tag. One that finds none
// waits in memory; headers are read only while a posted buffer is free, so that this happens only
// to messages that overtake, never to those that merely come early.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <utility>

#include "plugin/core.hpp"
#include "plugin/guard.hpp"
#include "plugin/host_device.hpp"
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
  Result reg_mr(void* data, std::size_t bytes, int type, void** mr) override {
    const Result result = harp::plugin::check_host_memory(type);
    if (result == Result::kSuccess) {
      *mr = new std::span(static_cast<std::byte*>(data), bytes);
    }
    return result;
  }
  Result dereg_mr(void* mr) override {
    delete static_cast<std::span<std::byte>*>(mr);
    return Result::kSuccess;
  }

 protected:
  explicit TcpComm(UniqueFd socket) : socket_(std::move(socket)) {}

  /// Says in NCCL's log what ended the comm, once, and returns `result` from then on.
  Result fail(Result result, const char* why, int error) {
    if (broken_ == Result::kSuccess) {
      broken_ = result;
      std::array<char, 128> text{};
      harp::plugin::log(harp::abi::LogLevel::kWarn,
                        this->kind() == harp::plugin::CommKind::kSend ? "send" : "receive",
                        "%s%s%s",
                        why,
                        error != 0 ? ": " : "",
                        error != 0 ? ::strerror_r(error, text.data(), text.size()) : "");
    }
    return broken_;
  }

  UniqueFd socket_;
  Result broken_ = Result::kSuccess;
};

class TcpSendComm final : public TcpComm<harp::plugin::SendComm> {
 public:
  explicit TcpSendComm(UniqueFd socket) : TcpComm(std::move(socket)) {}
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
    bool is_sent = false;
    bool is_free = true;
  };

  /// Sends what the socket takes.
  Result progress();

  std::array<Send, kRequests> sends_;
  std::uint64_t next_message_ = 0;
  std::uint64_t sending_ = 0;   ///< The message that the socket is in.
  std::size_t sent_bytes_ = 0;  ///< Bytes of it that are sent, header included.
};

class TcpRecvComm final : public TcpComm<harp::plugin::RecvComm> {
 public:
  explicit TcpRecvComm(UniqueFd socket) : TcpComm(std::move(socket)) {}
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
    bool is_free = true;
  };
  /// A message whose header was read and whose bytes have not all been.
  struct Incoming {
    Header header;
    std::byte* into = nullptr;
    std::unique_ptr<std::byte[]> waiting;  // NOLINT(modernize-avoid-c-arrays): uninitialised bytes
    Recv* recv = nullptr;                  ///< Null: nobody asked for it yet.
    std::size_t slot = 0;
    bool is_complete = false;
  };

  /// Reads what there is, as far as headers have told what it is.
  Result progress();
  /// Takes what recv() returned; `why` where the peer has closed.
  Result take(ssize_t count, std::size_t* bytes, const char* why);
  /// Reads the next header; false: not all of it is there.
  Result read_header(bool* complete);
  Result put(Incoming* message);
  bool match(const Header& header, Recv* candidate, std::size_t* slot) const;
  Result assign(Incoming* message, Recv* recv, std::size_t slot);
  void finish(Incoming* message);
  bool anything_open() const;

  std::array<Recv, kRequests> recvs_;
  std::uint64_t next_recv_ = 0;
  std::deque<Incoming> incoming_;  ///< The last one may be under way; others wait.
  std::size_t waiting_bytes_ = 0;
  Header partial_header_;
  std::size_t partial_bytes_ = 0;  ///< Bytes of the header.
  std::size_t read_bytes_ = 0;     ///< Bytes of the message behind it.
};

}  // namespace reftcp
