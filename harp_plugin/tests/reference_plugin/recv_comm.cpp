#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "comms.hpp"

namespace reftcp {

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
  ++next_recv_;
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
    if (!candidate->is_taken[i] && candidate->buffers[i].tag == header.tag) {
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
  } else if (message->is_complete) {
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

Result TcpRecvComm::take(ssize_t count, std::size_t* bytes, const char* why) {
  if (count == 0) {
    return fail(Result::kRemoteError, why, 0);
  }
  if (count < 0 && !would_block(errno)) {
    return fail(Result::kRemoteError, "the connection broke while receiving", errno);
  }
  *bytes += count > 0 ? static_cast<std::size_t>(count) : 0;
  return Result::kSuccess;
}

Result TcpRecvComm::read_header(bool* complete) {
  const auto rest = bytes_of(partial_header_).subspan(partial_bytes_);
  const Result result = take(::recv(socket_.get(), rest.data(), rest.size(), 0),
                             &partial_bytes_,
                             "the peer closed while a receive was posted");
  if (result != Result::kSuccess || partial_bytes_ < sizeof(Header)) {
    return result;
  }
  partial_bytes_ = 0;
  read_bytes_ = 0;
  if (partial_header_.magic != kMagic) {
    return fail(Result::kInternalError, "what came is not a message", 0);
  }
  *complete = true;
  Incoming& message = incoming_.emplace_back();
  message.header = partial_header_;
  return put(&message);
}

Result TcpRecvComm::progress() {
  while (broken_ == Result::kSuccess) {
    if (incoming_.empty() || incoming_.back().is_complete) {
      if (!anything_open()) {
        break;
      }
      bool complete = false;
      const Result result = read_header(&complete);
      if (result != Result::kSuccess || !complete) {
        return result;
      }
    }
    Incoming& message = incoming_.back();
    while (read_bytes_ < message.header.bytes) {
      const std::size_t before = read_bytes_;
      const Result result = take(
          ::recv(socket_.get(), message.into + read_bytes_, message.header.bytes - read_bytes_, 0),
          &read_bytes_,
          "the peer closed in the middle of a message");
      if (result != Result::kSuccess || read_bytes_ == before) {
        return result;
      }
    }
    message.is_complete = true;
    if (message.recv != nullptr) {
      finish(&message);
    }
    while (!incoming_.empty() && incoming_.front().is_complete &&
           incoming_.front().recv != nullptr) {
      incoming_.pop_front();
    }
  }
  return broken_;
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
