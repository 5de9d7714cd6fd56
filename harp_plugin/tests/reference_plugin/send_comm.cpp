#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "comms.hpp"

namespace reftcp {

Result TcpSendComm::isend(
    const void* data, std::size_t bytes, int tag, void* /*mr*/, Request** request) {
  if (broken_ != Result::kSuccess) {
    return broken_;
  }
  Send& send = sends_[next_message_ % kRequests];
  if (!send.is_free) {
    return progress();
  }
  send.comm = this;
  send.data = static_cast<const std::byte*>(data);
  send.header = Header{.bytes = bytes, .tag = tag};
  send.is_sent = false;
  send.is_free = false;
  ++next_message_;
  *request = &send;
  return progress();
}

Result TcpSendComm::progress() {
  while (broken_ == Result::kSuccess && sending_ < next_message_) {
    Send& send = sends_[sending_ % kRequests];
    while (sent_bytes_ < sizeof(Header) + send.header.bytes) {
      std::array<iovec, 2> parts{};
      std::size_t count = 0;
      if (sent_bytes_ < sizeof(Header)) {
        const auto rest = bytes_of(send.header).subspan(sent_bytes_);
        parts[count++] = {rest.data(), rest.size()};
      }
      const std::size_t paid = std::max(sent_bytes_, sizeof(Header)) - sizeof(Header);
      if (paid < send.header.bytes) {
        // sendmsg() takes a pointer to what may change, and changes nothing.
        parts[count++] = {const_cast<std::byte*>(send.data) + paid, send.header.bytes - paid};
      }
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = count;
      const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
      if (sent < 0) {
        return would_block(errno)
                   ? Result::kSuccess
                   : fail(Result::kRemoteError, "the connection broke while sending", errno);
      }
      sent_bytes_ += static_cast<std::size_t>(sent);
    }
    send.is_sent = true;
    ++sending_;
    sent_bytes_ = 0;
  }
  return broken_;
}

Result TcpSendComm::Send::test(bool* done, int* bytes) {
  if (is_free) {
    return Result::kInvalidUsage;
  }
  // What is in the kernel's hands is sent, also where the peer has closed since.
  if (!is_sent) {
    const Result result = comm->progress();
    if (result != Result::kSuccess) {
      return result;
    }
  }
  if (is_sent) {
    *done = true;
    is_free = true;
    if (bytes != nullptr) {
      *bytes = static_cast<int>(header.bytes);
    }
  }
  return Result::kSuccess;
}

}  // namespace reftcp
