#include "datapath/udp.hpp"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "base/udp_limits.hpp"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace harp {
namespace {

constexpr std::size_t kDatagramBytes = 65536;
constexpr std::size_t kReceives = 8;       ///< Datagrams, coalesced or not, of one burst.
constexpr std::size_t kQueue = 180;        ///< Packets that wait for a flush().
constexpr std::size_t kPaddingShare = 16;  ///< One byte in so many of a batch may be padding.
constexpr std::array<std::byte, kMaxUdpPayload> kPadding{};
constexpr std::size_t kPieces = 3;  ///< Head, payload, padding.
constexpr std::size_t kHeadBytes = 1024;
constexpr Duration kRetry = std::chrono::microseconds(50);

socklen_t write_address(const Address& address, sockaddr_storage& out) {
  if (address.family == 4) {
    auto* const in = reinterpret_cast<sockaddr_in*>(&out);
    *in = {};
    in->sin_family = AF_INET;
    in->sin_port = htons(address.port);
    std::memcpy(&in->sin_addr, address.ip.data(), sizeof(in->sin_addr));
    return sizeof(*in);
  }
  auto* const in = reinterpret_cast<sockaddr_in6*>(&out);
  *in = {};
  in->sin6_family = AF_INET6;
  in->sin6_port = htons(address.port);
  std::memcpy(&in->sin6_addr, address.ip.data(), sizeof(in->sin6_addr));
  return sizeof(*in);
}

Address read_address(const sockaddr_storage& from) {
  Address address;
  if (from.ss_family == AF_INET) {
    const auto* const in = reinterpret_cast<const sockaddr_in*>(&from);
    address.family = 4;
    address.port = ntohs(in->sin_port);
    std::memcpy(address.ip.data(), &in->sin_addr, sizeof(in->sin_addr));
  } else {
    const auto* const in = reinterpret_cast<const sockaddr_in6*>(&from);
    address.family = 6;
    address.port = ntohs(in->sin6_port);
    std::memcpy(address.ip.data(), &in->sin6_addr, sizeof(in->sin6_addr));
  }
  return address;
}

void set_option(int fd, int level, int option, int value) {
  // Tuning only: a kernel that knows no such option works as well.
  (void)::setsockopt(fd, level, option, &value, sizeof(value));
}

void set_buffers(int fd, int bytes) {
  set_option(fd, SOL_SOCKET, SO_RCVBUF, bytes);
  set_option(fd, SOL_SOCKET, SO_SNDBUF, bytes);
  // Beyond net.core.[rw]mem_max where this process is allowed to.
  set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, bytes);
  set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, bytes);
}

/// The receive buffer holds at least so much payload: the kernel counts a packet's memory as well,
/// up to about as much again, for which it doubles what it was asked for.
std::size_t receive_buffer(int fd) {
  int bytes = 0;
  socklen_t size = sizeof(bytes);
  const bool is_known = ::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &size) == 0 && bytes > 0;
  return is_known ? static_cast<std::size_t>(bytes) / 2 : 0;
}

/// Room for the size of a segment, and for the time of an arrival.
struct alignas(cmsghdr) Control {
  std::array<std::byte, CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(timespec))> bytes;
};

Duration duration_of(const timespec& time) {
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// On the clock of the kernel's timestamps, which may be set.
Duration wall_time() {
  timespec now{};
  (void)::clock_gettime(CLOCK_REALTIME, &now);
  return duration_of(now);
}

}  // namespace

// Everything is written before it is read; it is large.
// NOLINTBEGIN(cppcoreguidelines-pro-type-member-init)
struct UdpDatapath::Batches {
  struct Packet {
    Route route;
    std::array<std::byte, kHeadBytes> head;
    std::size_t head_bytes;
    std::span<const std::byte> payload;
    std::size_t padding;
    std::size_t bytes() const { return head_bytes + payload.size(); }
  };

  // Transmit: messages of up to kMaxSegments packets each.
  std::array<Packet, kQueue> packets;
  std::array<iovec, kPieces * kQueue> pieces;
  std::array<mmsghdr, kQueue> messages;
  std::array<sockaddr_storage, kQueue> peers;
  std::array<Control, kQueue> segment_sizes;
  std::array<std::size_t, kQueue> packet_counts;

  // Receive.
  std::vector<std::byte> datagrams = std::vector<std::byte>(kReceives * kDatagramBytes);
  std::array<mmsghdr, kReceives> arrived;
  std::array<iovec, kReceives> buffers;
  std::array<sockaddr_storage, kReceives> senders;
  std::array<Control, kReceives> coalesced;
};
// NOLINTEND(cppcoreguidelines-pro-type-member-init)

UdpDatapath::UdpDatapath(const UdpOptions& options)
    : mtu_bytes_(std::min(options.mtu_bytes, kMaxUdpPayload + 28)),
      segment_(options.segment),
      poll_(::epoll_create1(EPOLL_CLOEXEC)),
      batches_(std::make_unique<Batches>()) {
  arrivals_.reserve(kReceives * kMaxSegments);
}

UdpDatapath::~UdpDatapath() = default;

std::unique_ptr<UdpDatapath> UdpDatapath::open(const UdpOptions& options, std::string* error) {
  std::unique_ptr<UdpDatapath> datapath(new UdpDatapath(options));
  for (std::size_t i = 0; i < options.local_ports; ++i) {
    *error = datapath->open_socket(options, i);
    if (!error->empty()) {
      return nullptr;
    }
  }
  return datapath;
}

/// Says what went wrong, or nothing.
std::string UdpDatapath::open_socket(const UdpOptions& options, std::size_t index) {
  const auto problem = [&](const char* what) {
    return std::string(what) + " at " + to_string(options.local) + ": " +
           std::system_category().message(errno);
  };
  const bool is_v4 = options.local.family == 4;
  UniqueFd fd(::socket(is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) {
    return problem("no UDP socket");
  }
  Address local = options.local;
  local.port = index == 0 ? local.port : std::uint16_t{0};
  sockaddr_storage bound{};
  socklen_t bytes = write_address(local, bound);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&bound), bytes) != 0) {
    return problem("cannot bind a UDP socket");
  }
  set_buffers(fd.get(), static_cast<int>(options.buffer_bytes));
  if (is_v4) {
    set_option(fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
  } else {
    set_option(fd.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
  }
  if (segment_) {
    set_option(fd.get(), IPPROTO_UDP, UDP_GRO, 1);
  }
  set_option(fd.get(), SOL_SOCKET, SO_TIMESTAMPNS, 1);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = index;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0 ||
      ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
    return problem("cannot watch a UDP socket");
  }
  ports_.push_back(read_address(bound).port);
  if (index == 0) {
    address_ = read_address(bound);
    buffer_bytes_ = receive_buffer(fd.get());
  }
  sockets_.push_back(std::move(fd));
  return {};
}

// --- Receive ------------------------------------------------------------------------------------

std::span<const Arrival> UdpDatapath::receive() {  // hot
  arrivals_.clear();
  std::array<epoll_event, 16> ready;  // NOLINT: filled as far as it is used
  const int count =
      ::epoll_wait(poll_.get(), ready.data(), static_cast<int>(ready.size()), /*timeout=*/0);
  for (int i = 0; i < count; ++i) {
    if (receive_from(ready[static_cast<std::size_t>(i)].data.u64) > 0) {
      break;  // Its bytes fill the buffers; epoll gives the others their turn.
    }
  }
  return arrivals_;
}

std::size_t UdpDatapath::receive_from(std::size_t socket) {
  Batches& batch = *batches_;
  for (std::size_t i = 0; i < kReceives; ++i) {
    batch.buffers[i] = {.iov_base = batch.datagrams.data() + i * kDatagramBytes,
                        .iov_len = kDatagramBytes};
    batch.arrived[i].msg_hdr = {.msg_name = &batch.senders[i],
                                .msg_namelen = sizeof(batch.senders[i]),
                                .msg_iov = &batch.buffers[i],
                                .msg_iovlen = 1,
                                .msg_control = batch.coalesced[i].bytes.data(),
                                .msg_controllen = batch.coalesced[i].bytes.size(),
                                .msg_flags = 0};
  }
  const int count =
      ::recvmmsg(sockets_[socket].get(), batch.arrived.data(), kReceives, MSG_DONTWAIT, nullptr);
  const Duration now = count > 0 ? wall_time() : Duration::zero();
  for (int i = 0; i < count; ++i) {
    split(static_cast<std::size_t>(i), socket, now);
  }
  stats_.batches_received += count > 0 ? 1 : 0;
  return count > 0 ? static_cast<std::size_t>(count) : 0;
}

/// Makes packets of what was coalesced.
void UdpDatapath::split(std::size_t message, std::size_t socket, Duration now) {
  Batches& batch = *batches_;
  mmsghdr& arrived = batch.arrived[message];
  const std::size_t bytes = arrived.msg_len;
  std::size_t segment = bytes;
  Duration waited{};
  for (cmsghdr* control = CMSG_FIRSTHDR(&arrived.msg_hdr); control != nullptr;
       control = CMSG_NXTHDR(&arrived.msg_hdr, control)) {
    if (control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_GRO) {
      int size = 0;
      std::memcpy(&size, CMSG_DATA(control), sizeof(size));
      segment = size > 0 ? static_cast<std::size_t>(size) : bytes;
    } else if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_TIMESTAMPNS) {
      timespec arrival{};
      std::memcpy(&arrival, CMSG_DATA(control), sizeof(arrival));
      waited = std::max(now - duration_of(arrival), Duration::zero());
    }
  }
  const Route route{.peer = read_address(batch.senders[message]),
                    .local_port = static_cast<std::uint16_t>(socket)};
  const auto* const at = batch.datagrams.data() + message * kDatagramBytes;
  for (std::size_t begin = 0; begin < bytes; begin += segment) {
    const std::size_t len = std::min(segment, bytes - begin);
    arrivals_.push_back({.packet = {at + begin, len}, .route = route, .waited = waited});
    ++stats_.packets_received;
  }
  stats_.bytes_received += bytes;
}

// --- Transmit -----------------------------------------------------------------------------------

std::size_t UdpDatapath::room() const {
  return kQueue - queued_;
}

void UdpDatapath::send(const Route& route,
                       std::span<const std::byte> head,
                       std::span<const std::byte> payload) {  // hot
  Batches::Packet& packet = batches_->packets[queued_++];
  packet.route = route;
  packet.head_bytes = head.size();
  std::ranges::copy(head, packet.head.begin());
  packet.payload = payload;
  packet.padding = 0;
}

/// Packets from `first` on that leave together: of one route and one size, the last may be shorter.
/// Others that are shorter are padded, where that is little: the last packets of messages.
std::size_t UdpDatapath::batch_end(std::size_t first) {
  auto& packets = batches_->packets;
  const std::size_t size = packets[first].bytes();
  const std::size_t maximum =
      segment_ && first >= alone_until_
          ? std::clamp<std::size_t>(
                kMaxUdpPayload / std::max<std::size_t>(size, 1), 1, kMaxSegments)
          : 1;
  const std::size_t max_padding = maximum * size / kPaddingShare;
  std::size_t end = first + 1;
  std::size_t padding = 0;
  packets[first].padding = 0;
  for (std::size_t next = end; next < queued_ && next - first < maximum && padding <= max_padding;
       ++next) {
    const std::size_t bytes = packets[next].bytes();
    if (bytes > size || packets[next].route != packets[first].route) {
      break;
    }
    if (padding * kPaddingShare <= (next - first) * size) {
      end = next + 1;
    }
    packets[next].padding = size - bytes;
    padding += size - bytes;
  }
  packets[end - 1].padding = 0;
  return end;
}

void UdpDatapath::build_message(std::size_t message, std::size_t first, std::size_t end) {
  Batches& batch = *batches_;
  std::size_t pieces = kPieces * first;
  for (std::size_t i = first; i < end; ++i) {
    Batches::Packet& packet = batch.packets[i];
    batch.pieces[pieces++] = {.iov_base = packet.head.data(), .iov_len = packet.head_bytes};
    if (!packet.payload.empty()) {
      batch.pieces[pieces++] = {.iov_base = const_cast<std::byte*>(packet.payload.data()),
                                .iov_len = packet.payload.size()};
    }
    if (packet.padding > 0) {
      batch.pieces[pieces++] = {.iov_base = const_cast<std::byte*>(kPadding.data()),
                                .iov_len = packet.padding};
    }
  }
  msghdr& header = batch.messages[message].msg_hdr;
  header = {.msg_name = &batch.peers[message],
            .msg_namelen = write_address(batch.packets[first].route.peer, batch.peers[message]),
            .msg_iov = &batch.pieces[kPieces * first],
            .msg_iovlen = pieces - kPieces * first,
            .msg_control = nullptr,
            .msg_controllen = 0,
            .msg_flags = 0};
  batch.packet_counts[message] = end - first;
  if (end - first > 1) {
    const auto size = static_cast<std::uint16_t>(batch.packets[first].bytes());
    header.msg_control = batch.segment_sizes[message].bytes.data();
    header.msg_controllen = CMSG_SPACE(sizeof(size));
    cmsghdr* const control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = IPPROTO_UDP;
    control->cmsg_type = UDP_SEGMENT;
    control->cmsg_len = CMSG_LEN(sizeof(size));
    std::memcpy(CMSG_DATA(control), &size, sizeof(size));
  }
}

/// Messages that leave by the socket of packet `first`.
std::size_t UdpDatapath::build_messages(std::size_t first) {
  const auto& packets = batches_->packets;
  const std::uint16_t port = packets[first].route.local_port;
  std::size_t messages = 0;
  while (first < queued_ && packets[first].route.local_port == port) {
    const std::size_t end = batch_end(first);
    build_message(messages++, first, end);
    first = end;
  }
  return messages;
}

bool UdpDatapath::flush(Time now) {  // hot
  Batches& batch = *batches_;
  while (sent_ < queued_) {
    const std::size_t messages = build_messages(sent_);
    const int fd = sockets_[batch.packets[sent_].route.local_port % sockets_.size()].get();
    const int count =
        ::sendmmsg(fd, batch.messages.data(), static_cast<unsigned>(messages), MSG_DONTWAIT);
    if (count < 0) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS) {
        ++stats_.blocked;
        retry_at_ = now + kRetry;
        return false;
      }
      on_refused(error, batch.packet_counts[0]);
      continue;
    }
    segment_ = segment_ && sent_ >= alone_until_;  // Alone it went: so that was the reason.
    for (int i = 0; i < count; ++i) {
      const std::size_t packets = batch.packet_counts[static_cast<std::size_t>(i)];
      for (std::size_t k = 0; k < packets; ++k) {
        stats_.bytes_sent += batch.packets[sent_ + k].bytes() + batch.packets[sent_ + k].padding;
      }
      sent_ += packets;
      stats_.packets_sent += packets;
    }
    stats_.batches_sent += static_cast<std::uint64_t>(count);
  }
  discard();
  return true;
}

/// The first message was refused. Its packets are tried one by one, in case that it was
/// segmentation which was refused and not the peer; what is refused alone is lost, as it would be
/// behind the interface.
void UdpDatapath::on_refused(int error, std::size_t packets) {
  if (error == EINTR) {
    return;
  }
  if (packets > 1 && (error == EIO || error == EINVAL || error == EOPNOTSUPP)) {
    alone_until_ = sent_ + packets;
    return;
  }
  sent_ += packets;
  stats_.send_errors += packets;
}

void UdpDatapath::discard() {
  queued_ = 0;
  sent_ = 0;
  alone_until_ = 0;
  retry_at_ = kNever;
}

}  // namespace harp
