#include "lightcc/transport/tcp/tcp_socket.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>

namespace lightcc {
namespace {

Status set_option(int fd, int level, int option, int value) {
  if (::setsockopt(fd, level, option, &value, sizeof(value)) != 0) {
    return make_system_error(ErrorCode::kSystem, errno, "TCP transport: setsockopt %d", option);
  }
  return {};
}

}  // namespace

Status tune_socket(int fd, Duration user_timeout) {
  const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(user_timeout).count();
  const int timeout_ms =
      static_cast<int>(std::clamp<std::int64_t>(limit_ms, 1, std::numeric_limits<int>::max()));
  // A receiver has nothing unacknowledged that could time out: it asks by keepalives, so often that
  // three of them fit into the limit.
  constexpr int kProbes = 3;
  constexpr int kMaxIntervalS = 32767;
  const int interval_s = std::clamp(timeout_ms / 1000 / kProbes, 1, kMaxIntervalS);
  LIGHTCC_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1));
  LIGHTCC_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms));
  LIGHTCC_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, interval_s));
  LIGHTCC_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval_s));
  LIGHTCC_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes));
  return set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

Status socket_error(int error_number, std::uint32_t rank, const char* doing) {
  ErrorCode code = ErrorCode::kSystem;
  switch (error_number) {
    case ETIMEDOUT:
      code = ErrorCode::kTimeout;
      break;
    case ECONNRESET:
    case EPIPE:
    case ECONNREFUSED:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
      code = ErrorCode::kPeerFailed;
      break;
    default:
      break;
  }
  return make_system_error(code, error_number, "%s rank %u", doing, rank);
}

}  // namespace lightcc
