// To which neighbour a packet leaves: the kernel's routes and neighbours, asked by rtnetlink.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/time.hpp"
#include "datapath/address.hpp"
#include "datapath/frame.hpp"
#include "datapath/unique_fd.hpp"

namespace harp {

/// What an interface is to the kernel.
struct Link {
  int index = 0;
  MacAddress mac{};
};

/// Nothing, and `error` says why, where there is no Ethernet interface of that name.
std::optional<Link> find_link(const std::string& name, std::string* error);

/// Next hops behind one interface. Thread: one at a time.
///
/// The kernel owns routes, ARP and neighbour discovery. An answer is kept for a while; where the
/// kernel has not heard of the neighbour lately, find() says nothing once, and the caller sends by
/// a socket, so that the kernel asks.
class NextHops {
 public:
  static std::unique_ptr<NextHops> open(int interface, std::string* error);

  /// The neighbour towards `peer`. Nothing: send by the kernel, be it that it has to resolve the
  /// neighbour, or that the way does not lead through this interface.
  std::optional<MacAddress> find(const Address& peer, Time now);

 private:
  struct IpHash {
    std::size_t operator()(const std::array<std::byte, 16>& ip) const;
  };
  struct Hop {
    std::optional<MacAddress> mac;
    Time ask_again{};
  };

  NextHops(int interface, UniqueFd fd) : interface_(interface), fd_(std::move(fd)) {}
  Hop ask(const Address& peer, Time now);

  int interface_;
  UniqueFd fd_;
  std::unordered_map<std::array<std::byte, 16>, Hop, IpHash> hops_;
};

}  // namespace harp
