#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "comms.hpp"
#include "comms_base.hpp"

namespace reftcp {

template class TcpComm<harp::plugin::RecvComm>;

TcpRecvComm::TcpRecvComm(std::vector<UniqueFd> sockets, int max_recvs)
    : TcpComm(std::move(sockets)), uses_tags_(max_recvs > 1), cursors_(sockets_.size()) {}

Result TcpRecvComm::irecv(std::span<const RecvBuffer> buffers, Request** request) {
  if (broken_ != Result::kSuccess) {
    return broken_;
  }
  Recv& recv = recvs_[next_recv_ % kRequests];
  if (!recv.is_free) {
    return progress();
  }
  recv.comm = this;
  recv.count = buffers.size();
  recv.buffers_left = buffers.size();
  recv.buffers_open = buffers.size();
  recv.received.fill(0);
  recv.is_taken.fill(false);
  std::ranges::copy(buffers, recv.buffers.begin());
  recv.posted_as = next_recv_++;
  recv.is_free = false;
  // Messages that overtook and wait, oldest first.
  for (Incoming& message : incoming_) {
    std::size_t slot = 0;
    if (message.recv == nullptr && match(message.header, &recv, &slot)) {
      const Result result = assign(&message, &recv, slot);
      if (result != Result::kSuccess) {
        return result;
      }
    }
  }
  *request = &recv;
  return progress();
}

Result TcpRecvComm::iflush(std::span<const RecvBuffer> /*buffers*/, Request** /*request*/) {
  return broken_;  // Host memory is coherent: nothing to wait for.
}

bool TcpRecvComm::match(const Header& header, Recv* candidate, std::size_t* slot) const {
  for (std::size_t i = 0; i < candidate->count; ++i) {
    if (!candidate->is_taken[i] && (!uses_tags_ || candidate->buffers[i].tag == header.tag)) {
      *slot = i;
      return true;
    }
  }
  return false;
}

/// Gives the message to this buffer. Bytes that came already are copied when the last one is there.
Result TcpRecvComm::assign(Incoming* message, Recv* recv, std::size_t slot) {
  const RecvBuffer& buffer = recv->buffers[slot];
  if (message->header.bytes > buffer.bytes) {
    return fail(Result::kInvalidUsage, "a message is larger than the buffer posted for it", 0);
  }
  recv->is_taken[slot] = true;
  --recv->buffers_open;
  message->recv = recv;
  message->slot = slot;
  if (message->waiting == nullptr) {
    message->into = static_cast<std::byte*>(buffer.data);
  } else if (message->sockets_left == 0) {
    finish(message);
  }
  return Result::kSuccess;
}

/// Finds the buffer for a message whose header just came: the oldest receive with a free one.
Result TcpRecvComm::put(Incoming* message) {
  const std::uint64_t oldest = next_recv_ > kRequests ? next_recv_ - kRequests : 0;
  for (std::uint64_t i = oldest; i < next_recv_; ++i) {
    Recv& recv = recvs_[i % kRequests];
    std::size_t slot = 0;
    if (!recv.is_free && recv.buffers_open > 0 && match(message->header, &recv, &slot)) {
      return assign(message, &recv, slot);
    }
  }
  if (message->header.bytes > kMostWaitingBytes - waiting_bytes_) {
    return fail(Result::kInternalError, "too many bytes that no receive was posted for", 0);
  }
  waiting_bytes_ += message->header.bytes;
  message->waiting = std::make_unique_for_overwrite<std::byte[]>(message->header.bytes + 1);
  message->into = message->waiting.get();
  return Result::kSuccess;
}

void TcpRecvComm::finish(Incoming* message) {
  Recv& recv = *message->recv;
  if (message->waiting != nullptr) {
    if (message->header.bytes > 0) {
      std::memcpy(recv.buffers[message->slot].data, message->waiting.get(), message->header.bytes);
    }
    waiting_bytes_ -= message->header.bytes;
  }
  recv.received[message->slot] = static_cast<int>(message->header.bytes);
  --recv.buffers_left;
}

bool TcpRecvComm::anything_open() const {
  return std::ranges::any_of(
      recvs_, [](const Recv& recv) { return !recv.is_free && recv.buffers_open > 0; });
}

Result TcpRecvComm::read_header(bool* complete) {
  const auto rest = bytes_of(partial_header_).subspan(partial_bytes_);
  const ssize_t count = ::recv(sockets_[0].get(), rest.data(), rest.size(), 0);
  if (count == 0) {
    return fail(Result::kRemoteError, "the peer closed while a receive was posted", 0);
  }
  if (count < 0) {
    return would_block(errno)
               ? Result::kSuccess
               : fail(Result::kRemoteError, "the connection broke while receiving", errno);
  }
  partial_bytes_ += static_cast<std::size_t>(count);
  if (partial_bytes_ < sizeof(Header)) {
    return Result::kSuccess;
  }
  partial_bytes_ = 0;
  if (partial_header_.magic != kMagic) {
    return fail(Result::kInternalError, "what came is not a message", 0);
  }
  *complete = true;
  Incoming& message = incoming_.emplace_back();
  message.header = partial_header_;
  message.sockets_left = sockets_.size();
  return put(&message);
}

Result TcpRecvComm::progress() {
  for (std::size_t i = 0; i < sockets_.size() && broken_ == Result::kSuccess; ++i) {
    const Result result = pull(i);
    if (result != Result::kSuccess) {
      return result;
    }
  }
  while (!incoming_.empty() && incoming_.front().sockets_left == 0 &&
         incoming_.front().recv != nullptr) {
    incoming_.pop_front();
    ++first_incoming_;
  }
  return broken_;
}

/// Reads what there is on one socket, as far as headers have told what it is.
Result TcpRecvComm::pull(std::size_t index) {
  Cursor& cursor = cursors_[index];
  while (true) {
    if (cursor.message == first_incoming_ + incoming_.size()) {
      if (index != 0 || !anything_open()) {
        return Result::kSuccess;
      }
      bool complete = false;
      const Result result = read_header(&complete);
      if (result != Result::kSuccess || !complete) {
        return result;
      }
    }
    Incoming& message = incoming(cursor.message);
    const Share share =
        share_of(message.header.bytes, static_cast<int>(index), static_cast<int>(sockets_.size()));
    while (share.begin + cursor.done_bytes < share.end) {
      const ssize_t count = ::recv(sockets_[index].get(),
                                   message.into + share.begin + cursor.done_bytes,
                                   share.end - share.begin - cursor.done_bytes,
                                   0);
      if (count == 0) {
        return fail(Result::kRemoteError, "the peer closed in the middle of a message", 0);
      }
      if (count < 0) {
        return would_block(errno)
                   ? Result::kSuccess
                   : fail(Result::kRemoteError, "the connection broke while receiving", errno);
      }
      cursor.done_bytes += static_cast<std::size_t>(count);
    }
    ++cursor.message;
    cursor.done_bytes = 0;
    if (--message.sockets_left == 0 && message.recv != nullptr) {
      finish(&message);
    }
  }
}

Result TcpRecvComm::Recv::test(bool* done, int* bytes) {
  if (is_free) {
    return Result::kInvalidUsage;
  }
  if (buffers_left != 0) {
    const Result result = comm->progress();
    if (result != Result::kSuccess && buffers_left != 0) {
      return result;
    }
  }
  if (buffers_left == 0) {
    *done = true;
    is_free = true;
    if (bytes != nullptr) {
      std::copy_n(received.begin(), count, bytes);
    }
  }
  return Result::kSuccess;
}

}  // namespace reftcp
