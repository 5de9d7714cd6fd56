#include "lightcc/rendezvous/store_io.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "lightcc/net/poller.hpp"

namespace lightcc::detail {
namespace {

constexpr std::size_t kReadStepBytes = std::size_t{64} << 10;

/// Waits until `fd` is ready; kLate at the deadline, and when `stop_fd` is readable.
StoreIo wait_until_ready(int fd, short events, TimePoint deadline, int stop_fd) {
  while (true) {
    const TimePoint now = Clock::system().now();
    if (now >= deadline) {
      return StoreIo::kLate;
    }
    std::array<pollfd, 2> entries = {pollfd{fd, events, 0}, pollfd{stop_fd, POLLIN, 0}};
    if (::poll(entries.data(), entries.size(), milliseconds_until(deadline, now)) > 0) {
      return entries[1].revents != 0 ? StoreIo::kLate : StoreIo::kDone;
    }
  }
}

/// Reads until `in` has `total_bytes`; it grows with what arrives.
StoreIo receive_all(int fd, Bytes& in, std::size_t total_bytes, TimePoint deadline, int stop_fd) {
  while (in.size() < total_bytes) {
    const std::size_t before_bytes = in.size();
    in.resize(before_bytes + std::min(total_bytes - before_bytes, kReadStepBytes));
    const ssize_t count = ::recv(fd, in.data() + before_bytes, in.size() - before_bytes, 0);
    const int error = errno;
    in.resize(before_bytes + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0 || (count < 0 && !would_block(error))) {
      return StoreIo::kLost;
    }
    if (count < 0) {
      if (const StoreIo io = wait_until_ready(fd, POLLIN, deadline, stop_fd);
          io != StoreIo::kDone) {
        return io;
      }
    }
  }
  return StoreIo::kDone;
}

}  // namespace

StoreIo send_to_store(int fd, std::span<const std::byte> bytes, TimePoint deadline, int stop_fd) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (!would_block(errno)) {
      return StoreIo::kLost;
    } else if (const StoreIo io = wait_until_ready(fd, POLLOUT, deadline, stop_fd);
               io != StoreIo::kDone) {
      return io;
    }
  }
  return StoreIo::kDone;
}

Result<StoreIo> StoreInbox::receive(int fd, TimePoint deadline, Bytes& body, int stop_fd) {
  if (const StoreIo io = receive_all(fd, in_, kStoreFrameHeadBytes, deadline, stop_fd);
      io != StoreIo::kDone) {
    return io;
  }
  const auto head = std::span(in_).first(kStoreFrameHeadBytes);
  LIGHTCC_ASSIGN_OR_RETURN(const std::size_t body_bytes, decode_store_body_bytes(head));
  if (const StoreIo io = receive_all(fd, in_, kStoreFrameHeadBytes + body_bytes, deadline, stop_fd);
      io != StoreIo::kDone) {
    return io;
  }
  body.assign(in_.begin() + kStoreFrameHeadBytes, in_.end());
  in_.clear();
  return StoreIo::kDone;
}

Status late_answer(const StoreRequest& request, const std::string& server, bool was_lost) {
  if (was_lost) {
    return make_error(
        ErrorCode::kTimeout,
        "key '%s': the connection to the store at %s kept breaking until the deadline",
        request.key.c_str(),
        server.c_str());
  }
  if (request.kind == StoreRequest::Kind::kWatch) {
    return make_error(ErrorCode::kTimeout,
                      "nothing below '%s' in the store at %s changed before the deadline",
                      request.key.c_str(),
                      server.c_str());
  }
  return make_error(ErrorCode::kTimeout,
                    request.kind == StoreRequest::Kind::kGet
                        ? "key '%s' was not set in the store at %s before the deadline"
                        : "key '%s': the store at %s did not answer before the deadline",
                    request.key.c_str(),
                    server.c_str());
}

}  // namespace lightcc::detail
