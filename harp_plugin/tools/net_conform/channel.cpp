#include "channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace net_conform {
namespace {

std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void Channel::close() {
  if (write_fd_ >= 0 && write_fd_ != read_fd_) {
    ::close(write_fd_);
  }
  if (read_fd_ >= 0) {
    ::close(read_fd_);
  }
  read_fd_ = write_fd_ = -1;
}

void Channel::begin_case(std::uint32_t number) {
  number_ = number;
  peer_has_ended_ = false;
  peer_lines_.clear();
}

void Channel::send(std::span<const std::byte> data) {
  send_frame(Kind::kData, data);
}

std::vector<std::byte> Channel::receive(TimePoint deadline) {
  if (peer_has_ended_) {
    throw PeerStopped(false);
  }
  std::vector<std::byte> data;
  if (receive_frame(&data, deadline) == Kind::kEnd) {
    peer_has_ended_ = true;
    peer_lines_ = std::move(data);
    throw PeerStopped(false);
  }
  return data;
}

void Channel::meet(TimePoint deadline) {
  send({});
  receive(deadline);
}

std::string Channel::end_case(const std::string& lines, TimePoint deadline) {
  send_frame(Kind::kEnd, bytes_of_text(lines));
  while (!peer_has_ended_) {
    std::vector<std::byte> data;
    if (receive_frame(&data, deadline) == Kind::kEnd) {
      peer_has_ended_ = true;
      peer_lines_ = std::move(data);
    }
  }
  return text_of(peer_lines_);
}

void Channel::write_all(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t count = ::write(write_fd_, from, bytes);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      throw PeerStopped(true);
    }
    from += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void Channel::read_all(void* data, std::size_t bytes, TimePoint deadline) {
  auto* into = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{read_fd_, POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    if (ready == 0) {
      throw PeerStopped(true);
    }
    const ssize_t count = ::read(read_fd_, into, bytes);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      throw PeerStopped(true);
    }
    into += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void Channel::send_frame(Kind kind, std::span<const std::byte> data) {
  const Frame frame{number_, kind, data.size()};
  write_all(&frame, sizeof(frame));
  write_all(data.data(), data.size());
}

Channel::Kind Channel::receive_frame(std::vector<std::byte>* data, TimePoint deadline) {
  while (true) {
    Frame frame{};
    read_all(&frame, sizeof(frame), deadline);
    data->resize(frame.bytes);
    read_all(data->data(), data->size(), deadline);
    if (frame.number == number_) {
      return frame.kind;
    }
  }
}

}  // namespace net_conform
