#include "lightcc/transport/shm/host_mail.hpp"

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "lightcc/base/sha256.hpp"
#include "lightcc/transport/shm/segment.hpp"

namespace lightcc {
namespace {

// Whoever floods a rank with datagrams does not keep it here.
constexpr int kMaxAtOnce = 64;
constexpr std::size_t kParcelBytes = sizeof(HostMail::Token) + sizeof(std::uint32_t);

UniqueFd make_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Status no_socket() {
  return make_system_error(ErrorCode::kSystem, errno, "cannot make a Unix socket");
}

bool send_byte(int socket, const SocketAddress& to) {
  const std::byte byte{};
  return ::sendto(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL, to.data(), to.length()) == 1;
}

}  // namespace

void send_wake_up(int socket, const SocketAddress& to) {
  // The same error says that the receiver's queue is full, which wakes it, and that too much of
  // this socket lies in others' queues. A new socket has nothing there.
  if (!send_byte(socket, to) && errno == EAGAIN) {
    (void)send_byte(make_socket().get(), to);
  }
}

Result<HostMail> HostMail::open(const std::string& name) {
  HostMail mail;
  mail.socket_ = make_socket();
  if (!mail.socket_.valid()) {
    return no_socket();
  }
  const SocketAddress own = address_of(name);
  if (::bind(mail.socket_.get(), own.data(), own.length()) != 0) {
    return make_system_error(
        ErrorCode::kSystem, errno, "cannot bind the Unix socket %s", own.to_string().c_str());
  }
  return mail;
}

SocketAddress HostMail::address_of(const std::string& name) {
  return SocketAddress::abstract_unix(name + "-mail");
}

Result<bool> HostMail::exists(const std::string& name) {
  const UniqueFd probe = make_socket();
  if (!probe.valid()) {
    return no_socket();
  }
  const SocketAddress there = address_of(name);
  return ::connect(probe.get(), there.data(), there.length()) == 0;
}

void HostMail::meet(const std::vector<std::string>& names, const Token& token) {
  names_.clear();
  for (const std::string& name : names) {
    names_.push_back(address_of(name));
  }
  token_ = token;
}

Result<bool> HostMail::send(std::size_t position, std::uint32_t number, int fd) const {
  std::array<std::byte, kParcelBytes> payload{};
  std::ranges::copy(token_, payload.begin());
  std::memcpy(payload.data() + token_.size(), &number, sizeof(number));
  return send_fds(socket_.get(), payload, std::span(&fd, 1), &names_[position]);
}

bool HostMail::receive_one() {
  std::array<std::byte, kParcelBytes> payload{};
  iovec piece{.iov_base = payload.data(), .iov_len = payload.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  // There is room for one descriptor, and none in the padding: the kernel drops what else comes.
  message.msg_controllen = CMSG_LEN(sizeof(int));
  const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0) {
    return false;
  }
  UniqueFd fd;
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header != nullptr && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof(number));
    fd = UniqueFd(number);
  }
  const auto bytes = std::span(payload).first(static_cast<std::size_t>(count));
  if (bytes.size() != payload.size() || (message.msg_flags & MSG_TRUNC) != 0 ||
      !equal_constant_time(bytes.first(token_.size()), token_)) {
    return true;
  }
  if (!fd.valid()) {
    trouble_ =
        make_system_error(ErrorCode::kSystem,
                          EMFILE,
                          "a descriptor that a rank of this host passed could not be opened");
    return true;
  }
  std::uint32_t number = 0;
  std::memcpy(&number, payload.data() + token_.size(), sizeof(number));
  parcels_.emplace_back(number, std::move(fd));
  return true;
}

void HostMail::collect() {
  for (int count = 0; count < kMaxAtOnce && socket_.valid() && receive_one(); ++count) {
  }
}

Result<std::vector<HostMail::Parcel>> HostMail::take() {
  LIGHTCC_RETURN_IF_ERROR(std::exchange(trouble_, Status()));
  return std::exchange(parcels_, {});
}

}  // namespace lightcc
