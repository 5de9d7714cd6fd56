#include "lightcc/rendezvous/served_client.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "lightcc/net/poller.hpp"

namespace lightcc::detail {
namespace {

constexpr std::size_t kServerReadBytes = std::size_t{64} << 10;

}  // namespace

std::uint32_t ServedClient::wanted_events() const {
  switch (stage) {
    case Stage::kReadHead:
    case Stage::kReadBody:
      return EPOLLIN;
    case Stage::kParked:
    case Stage::kWatch:
    case Stage::kStay:
      return EPOLLRDHUP;  // Only its end is of interest.
    case Stage::kWrite:
      return EPOLLOUT;
  }
  return 0;
}

bool ServedClient::read_towards(std::size_t total_bytes, bool& moved) {
  const std::size_t before_bytes = in.size();
  in.resize(before_bytes + std::min(total_bytes - before_bytes, kServerReadBytes));
  const ssize_t count = ::recv(fd.get(), in.data() + before_bytes, in.size() - before_bytes, 0);
  const int error = errno;
  in.resize(before_bytes + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  moved = count > 0;
  return count > 0 || (count < 0 && would_block(error));
}

void ServedClient::answer(const StoreAnswer& said) {
  out_head.clear();
  encode_store_answer(said, out_head);
  start_writing(nullptr);
}

void ServedClient::answer_value(StoreMap::Value value) {
  out_head.clear();
  encode_store_value_head(value->size(), out_head);
  start_writing(std::move(value));
}

void ServedClient::start_writing(StoreMap::Value value) {
  out_value = std::move(value);
  sent_bytes = 0;
  stage = Stage::kWrite;
}

bool ServedClient::write_answer(bool& moved) {
  std::span<const std::byte> head = out_head;
  std::span<const std::byte> value;
  if (out_value) {
    value = *out_value;
  }
  const std::size_t total_bytes = head.size() + value.size();
  const std::size_t from_head = std::min(sent_bytes, head.size());
  head = head.subspan(from_head);
  value = value.subspan(sent_bytes - from_head);
  const auto part = [](std::span<const std::byte> bytes) {
    return iovec{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg() only reads.
  };
  std::array<iovec, 2> parts = {part(head), part(value)};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t count = ::sendmsg(fd.get(), &message, MSG_NOSIGNAL);
  moved = count > 0;
  if (count < 0) {
    return would_block(errno);
  }
  sent_bytes += static_cast<std::size_t>(count);
  if (sent_bytes == total_bytes) {
    out_value.reset();
    stage = Stage::kReadHead;
  }
  return true;
}

}  // namespace lightcc::detail
