// One handshake on one non-blocking socket: the sans-I/O state machine joined to send() and recv().
//
// It reads only what the handshake still wants, so that whatever the peer sends next stays in the
// socket for its new owner.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/net/poller.hpp"

namespace lightcc::detail {

template <typename Handshake>
class HandshakeIo {
 public:
  HandshakeIo(Handshake handshake, Bytes greeting)
      : handshake_(std::move(handshake)), out_(std::move(greeting)) {}

  const Handshake& handshake() const { return handshake_; }
  /// Whether anything was sent.
  bool has_received() const { return has_received_; }
  /// Whether anything was received.
  bool has_heard() const { return has_heard_; }
  /// Whether advance() failed because the connection ended, not because of what came over it.
  bool lost() const { return lost_; }
  /// What to wait for when advance() says false.
  std::uint32_t wanted_events() const { return out_.empty() ? EPOLLIN : EPOLLOUT; }

  /// True when the handshake is over and all of it is sent, false when the socket is not ready.
  Result<bool> advance(int fd) {
    while (true) {
      if (!out_.empty()) {
        LIGHTCC_ASSIGN_OR_RETURN(const bool sent, send_some(fd));
        if (!sent) {
          return false;
        }
      } else if (handshake_.done()) {
        return true;
      } else {
        LIGHTCC_ASSIGN_OR_RETURN(const bool received, receive_some(fd));
        if (!received) {
          return false;
        }
      }
    }
  }

 private:
  Result<bool> send_some(int fd) {
    const ssize_t count = ::send(fd, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (count < 0) {
      if (would_block(errno)) {
        return false;
      }
      lost_ = true;
      return make_system_error(
          ErrorCode::kPeerFailed, errno, "the connection broke during the handshake");
    }
    has_received_ = true;
    out_.erase(out_.begin(), out_.begin() + count);
    return true;
  }

  Result<bool> receive_some(int fd) {
    std::array<std::byte, 256> buffer{};
    const std::size_t maximum = std::min(buffer.size(), handshake_.wanted());
    const ssize_t count = ::recv(fd, buffer.data(), maximum, 0);
    if (count < 0) {
      if (would_block(errno)) {
        return false;
      }
      lost_ = true;
      return make_system_error(
          ErrorCode::kPeerFailed, errno, "the connection broke during the handshake");
    }
    if (count == 0) {
      lost_ = true;
      return make_error(ErrorCode::kPeerFailed, "the other end hung up during the handshake");
    }
    has_heard_ = true;
    const auto fed =
        handshake_.feed(std::span(buffer).first(static_cast<std::size_t>(count)), out_);
    if (!fed.ok()) {
      if (!out_.empty()) {
        // Tells the other end why, if it can be told at once.
        (void)::send(fd, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      }
      return fed.status();
    }
    return true;
  }

  Handshake handshake_;
  Bytes out_;
  bool has_received_ = false;
  bool has_heard_ = false;
  bool lost_ = false;
};

}  // namespace lightcc::detail
