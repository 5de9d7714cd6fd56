// send_fds() and recv_fds(): descriptors as SCM_RIGHTS over a Unix socket. (Contract: segment.hpp.)

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/transport/shm/segment.hpp"

namespace lightcc {

namespace {

struct alignas(cmsghdr) ControlBuffer {
  std::byte bytes[CMSG_SPACE(kMaxPassedFds * sizeof(int))];  // NOLINT(modernize-avoid-c-arrays)
};

bool is_would_block(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK;
}

/// Takes ownership of every descriptor in `message`.
std::vector<UniqueFd> adopt_fds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Result<bool> send_fds(int socket,
                      std::span<const std::byte> payload,
                      std::span<const int> fds,
                      const SocketAddress* to) {
  if (payload.empty() || payload.size() > kMaxFdPayload || fds.size() > kMaxPassedFds) {
    return make_error(ErrorCode::kInvalidArgument,
                      "cannot pass %zu descriptors with %zu bytes",
                      fds.size(),
                      payload.size());
  }
  iovec piece{.iov_base = const_cast<std::byte*>(payload.data()), .iov_len = payload.size()};
  ControlBuffer control{};
  msghdr message{};
  if (to != nullptr) {
    message.msg_name = const_cast<sockaddr*>(to->data());
    message.msg_namelen = to->length();
  }
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    if (is_would_block(errno)) {
      return false;
    }
    const bool gone =
        errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN || errno == ECONNREFUSED;
    return make_system_error(gone ? ErrorCode::kPeerFailed : ErrorCode::kSystem,
                             errno,
                             "passing %zu descriptors to a rank of this host",
                             fds.size());
  }
  if (static_cast<std::size_t>(sent) != payload.size()) {
    return make_error(ErrorCode::kSystem,
                      "a message of %zu bytes to a rank of this host was cut after %zd",
                      payload.size(),
                      sent);
  }
  return true;
}

Result<std::optional<ReceivedFds>> recv_fds(int socket,
                                            std::span<std::byte> payload,
                                            std::size_t max_fds) {
  if (payload.empty() || payload.size() > kMaxFdPayload || max_fds > kMaxPassedFds) {
    return make_error(ErrorCode::kInvalidArgument,
                      "cannot receive %zu descriptors with %zu bytes",
                      max_fds,
                      payload.size());
  }
  iovec piece{.iov_base = payload.data(), .iov_len = payload.size()};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t received = -1;
  do {
    received = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    if (is_would_block(errno)) {
      return std::optional<ReceivedFds>();
    }
    const bool gone = errno == ECONNRESET || errno == ENOTCONN;
    return make_system_error(gone ? ErrorCode::kPeerFailed : ErrorCode::kSystem,
                             errno,
                             "receiving descriptors from a rank of this host");
  }
  ReceivedFds result;
  result.fds = adopt_fds(message);  // First of all, so that every way out closes them.
  result.payload_bytes = static_cast<std::size_t>(received);
  if (received == 0) {
    return make_error(ErrorCode::kPeerFailed, "a rank of this host closed its socket");
  }
  // There is room for as many as one message can carry, so what was cut could not be opened here.
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return make_system_error(ErrorCode::kSystem,
                             EMFILE,
                             "only %zu of the descriptors that a rank of this host passed could be "
                             "opened",
                             result.fds.size());
  }
  if ((message.msg_flags & MSG_TRUNC) != 0 || result.fds.size() > max_fds) {
    return make_error(ErrorCode::kPeerFailed,
                      "a rank of this host passed more than %zu descriptors or %zu bytes",
                      max_fds,
                      payload.size());
  }
  return std::optional<ReceivedFds>(std::move(result));
}

}  // namespace lightcc
