#include "datapath/next_hops.hpp"

#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "base/time.hpp"
#include "datapath/address.hpp"
#include "datapath/frame.hpp"
#include "datapath/unique_fd.hpp"

namespace harp {
namespace {

constexpr Duration kHopKept = std::chrono::seconds(2);
constexpr Duration kUnresolved = std::chrono::milliseconds(2);
/// A stale neighbour is not among them: a packet that the kernel sends makes it look.
constexpr unsigned kUsable = NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_DELAY | NUD_PROBE;
constexpr std::size_t kMaxPeers = 65536;

constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + 3) & ~std::size_t{3};
}

std::uint8_t family_of(const Address& address) {
  return address.family == 4 ? AF_INET : AF_INET6;
}

/// One netlink message: a header, a body of type T and attributes.
template <typename T>
class Message {
 public:
  Message(std::uint16_t type, const T& body) {
    put(body, sizeof(nlmsghdr));
    header_.nlmsg_type = type;
    header_.nlmsg_flags = NLM_F_REQUEST;
  }
  void add(std::uint16_t type, std::span<const std::byte> value) {
    const rtattr attribute{.rta_len = static_cast<std::uint16_t>(sizeof(rtattr) + value.size()),
                           .rta_type = type};
    put(attribute, length_);
    std::ranges::copy(value,
                      bytes_.begin() + static_cast<std::ptrdiff_t>(length_ + sizeof(rtattr)));
    length_ += padded(sizeof(rtattr) + value.size());
  }
  std::span<const std::byte> finish() {
    header_.nlmsg_len = static_cast<std::uint32_t>(length_);
    put(header_, 0);
    return std::span(bytes_).first(length_);
  }

 private:
  template <typename U>
  void put(const U& value, std::size_t at) {
    std::memcpy(&bytes_[at], &value, sizeof(value));
  }

  nlmsghdr header_{};
  std::array<std::byte, 256> bytes_{};
  std::size_t length_ = sizeof(nlmsghdr) + padded(sizeof(T));
};

/// The kernel's answer: body and attributes. Empty where it says no.
class Answer {
 public:
  explicit Answer(std::span<const std::byte> received, std::uint16_t type) {
    nlmsghdr header{};
    if (received.size() < sizeof(header)) {
      return;
    }
    std::memcpy(&header, received.data(), sizeof(header));
    if (header.nlmsg_type == type && header.nlmsg_len <= received.size()) {
      rest_ = received.first(header.nlmsg_len).subspan(sizeof(header));
    }
  }
  template <typename T>
  std::optional<T> body() {
    T body{};
    if (rest_.size() < sizeof(body)) {
      return std::nullopt;
    }
    std::memcpy(&body, rest_.data(), sizeof(body));
    attributes_ = rest_.subspan(std::min(padded(sizeof(body)), rest_.size()));
    return body;
  }
  std::span<const std::byte> attribute(std::uint16_t type) const {
    auto rest = attributes_;
    rtattr attribute{};
    while (rest.size() >= sizeof(attribute)) {
      std::memcpy(&attribute, rest.data(), sizeof(attribute));
      if (attribute.rta_len < sizeof(attribute) || attribute.rta_len > rest.size()) {
        break;
      }
      if (attribute.rta_type == type) {
        return rest.first(attribute.rta_len).subspan(sizeof(attribute));
      }
      rest = rest.subspan(std::min(padded(attribute.rta_len), rest.size()));
    }
    return {};
  }

 private:
  std::span<const std::byte> rest_;
  std::span<const std::byte> attributes_;
};

/// Sends a request, and receives the answer into `buffer`: the kernel has it ready when the
/// request's system call returns.
std::span<const std::byte> exchange(int fd,
                                    std::span<const std::byte> request,
                                    std::span<std::byte> buffer) {
  while (::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) {  // It is an earlier answer.
  }
  if (::send(fd, request.data(), request.size(), 0) < 0) {
    return {};
  }
  const ssize_t bytes = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
  return buffer.first(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
}

}  // namespace

std::optional<Link> find_link(const std::string& name, std::string* error) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  Link link{.index = static_cast<int>(::if_nametoindex(name.c_str())), .mac = {}};
  if (link.index == 0 || ::ioctl(fd.get(), SIOCGIFHWADDR, &request) != 0) {
    *error = name + ": " + std::system_category().message(errno);
    return std::nullopt;
  }
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER) {
    *error = name + " is no Ethernet interface";
    return std::nullopt;
  }
  std::memcpy(link.mac.data(), request.ifr_hwaddr.sa_data, link.mac.size());
  return link;
}

std::size_t NextHops::IpHash::operator()(const std::array<std::byte, 16>& ip) const {
  std::array<std::uint64_t, 2> words{};
  std::memcpy(words.data(), ip.data(), ip.size());
  return (words[0] ^ (words[1] * 31)) * 0x9e3779b97f4a7c15ULL;
}

std::unique_ptr<NextHops> NextHops::open(int interface, std::string* error) {
  UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd.is_open()) {
    *error = "no netlink socket: " + std::system_category().message(errno);
    return nullptr;
  }
  return std::unique_ptr<NextHops>(new NextHops(interface, std::move(fd)));
}

std::optional<MacAddress> NextHops::find(const Address& peer, Time now) {
  const auto found = hops_.find(peer.ip);
  if (found != hops_.end() && now < found->second.ask_again) {
    return found->second.mac;
  }
  if (hops_.size() >= kMaxPeers) {
    hops_.clear();
  }
  return (hops_[peer.ip] = ask(peer, now)).mac;
}

NextHops::Hop NextHops::ask(const Address& peer, Time now) {
  const Hop by_kernel{.mac = std::nullopt, .ask_again = now + kUnresolved};
  std::array<std::byte, 4096> buffer{};

  rtmsg to{};
  to.rtm_family = family_of(peer);
  to.rtm_dst_len = static_cast<unsigned char>(8 * ip_of(peer).size());
  Message<rtmsg> route(RTM_GETROUTE, to);
  route.add(RTA_DST, ip_of(peer));
  Answer way(exchange(fd_.get(), route.finish(), buffer), RTM_NEWROUTE);
  const auto kind = way.body<rtmsg>();
  int interface = 0;
  const auto out = way.attribute(RTA_OIF);
  std::memcpy(&interface, out.data(), std::min(out.size(), sizeof(interface)));
  if (!kind || kind->rtm_type != RTN_UNICAST || interface != interface_) {
    return {.mac = std::nullopt, .ask_again = now + kHopKept};
  }
  Address neighbour = peer;
  const auto gateway = way.attribute(RTA_GATEWAY);
  std::copy_n(gateway.begin(), std::min(gateway.size(), neighbour.ip.size()), neighbour.ip.begin());

  ndmsg header{};
  header.ndm_family = family_of(peer);
  header.ndm_ifindex = interface_;
  Message<ndmsg> question(RTM_GETNEIGH, header);
  question.add(NDA_DST, ip_of(neighbour));
  Answer answer(exchange(fd_.get(), question.finish(), buffer), RTM_NEWNEIGH);
  const auto state = answer.body<ndmsg>();
  const auto mac = answer.attribute(NDA_LLADDR);
  if (!state || (state->ndm_state & kUsable) == 0 || mac.size() != sizeof(MacAddress)) {
    return by_kernel;
  }
  Hop hop{.mac = MacAddress{}, .ask_again = now + kHopKept};
  std::ranges::copy(mac, hop.mac->begin());
  return hop;
}

}  // namespace harp
