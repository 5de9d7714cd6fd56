#include <sys/uio.h>

#include <cerrno>

#include "comms.hpp"
#include "comms_base.hpp"

namespace reftcp {

template class TcpComm<harp::plugin::SendComm>;

TcpSendComm::TcpSendComm(std::vector<UniqueFd> sockets)
    : TcpComm(std::move(sockets)), cursors_(sockets_.size()) {}

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
  send.sockets_left = sockets_.size();
  send.is_free = false;
  ++next_message_;
  *request = &send;
  return progress();
}

Result TcpSendComm::progress() {
  for (std::size_t i = 0; i < sockets_.size() && broken_ == Result::kSuccess; ++i) {
    const Result result = push(i);
    if (result != Result::kSuccess) {
      return result;
    }
  }
  return broken_;
}

Result TcpSendComm::push(std::size_t index) {
  Cursor& cursor = cursors_[index];
  while (cursor.message < next_message_) {
    Send& send = sends_[cursor.message % kRequests];
    const Share share =
        share_of(send.header.bytes, static_cast<int>(index), static_cast<int>(sockets_.size()));
    const std::size_t header_bytes = index == 0 ? sizeof(Header) : 0;
    const std::size_t all_bytes = header_bytes + (share.end - share.begin);
    while (cursor.done_bytes < all_bytes) {
      std::array<iovec, 2> parts{};
      std::size_t count = 0;
      if (cursor.done_bytes < header_bytes) {
        const auto rest = bytes_of(send.header).subspan(cursor.done_bytes);
        parts[count++] = {rest.data(), rest.size()};
      }
      const std::size_t paid =
          cursor.done_bytes > header_bytes ? cursor.done_bytes - header_bytes : 0;
      if (share.begin + paid < share.end) {
        // sendmsg() takes a pointer to what may change, and changes nothing.
        parts[count++] = {const_cast<std::byte*>(send.data) + share.begin + paid,
                          share.end - share.begin - paid};
      }
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = count;
      const ssize_t sent = ::sendmsg(sockets_[index].get(), &message, MSG_NOSIGNAL);
      if (sent < 0) {
        return would_block(errno)
                   ? Result::kSuccess
                   : fail(Result::kRemoteError, "the connection broke while sending", errno);
      }
      cursor.done_bytes += static_cast<std::size_t>(sent);
    }
    --send.sockets_left;
    ++cursor.message;
    cursor.done_bytes = 0;
  }
  return Result::kSuccess;
}

Result TcpSendComm::Send::test(bool* done, int* bytes) {
  if (is_free) {
    return Result::kInvalidUsage;
  }
  // What is in the kernel's hands is sent, also where the peer has closed since.
  if (sockets_left != 0) {
    const Result result = comm->progress();
    if (result != Result::kSuccess) {
      return result;
    }
  }
  if (sockets_left == 0) {
    *done = true;
    is_free = true;
    if (bytes != nullptr) {
      *bytes = static_cast<int>(header.bytes);
    }
  }
  return Result::kSuccess;
}

}  // namespace reftcp
