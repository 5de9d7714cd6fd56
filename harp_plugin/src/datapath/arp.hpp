// The address resolution protocol (RFC 826) for datapaths without a kernel beside them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/time.hpp"
#include "datapath/address.hpp"
#include "datapath/frame.hpp"

namespace harp {

inline constexpr std::size_t kArpFrameBytes = kEthernetBytes + 28;
using ArpFrame = std::array<std::byte, kArpFrameBytes>;

struct ArpPacket {
  bool is_request = false;
  MacAddress sender_mac{};
  std::uint32_t sender_ip = 0;  ///< Host order, as all here.
  std::uint32_t target_ip = 0;
  bool operator==(const ArpPacket&) const = default;
};

/// Nothing: no ARP for IPv4 over Ethernet.
std::optional<ArpPacket> parse_arp(std::span<const std::byte> frame);
/// To `to`; for a request, everybody.
ArpFrame encode_arp(const ArpPacket& packet, const MacAddress& to);

std::uint32_t ipv4_number(const Address& address);

/// This end, and what it has learnt of its neighbours. Thread: one at a time.
class ArpTable {
 public:
  struct Self {
    MacAddress mac{};
    std::uint32_t ip = 0;
    unsigned prefix = 24;       ///< Bits of `ip` that its neighbours share.
    std::uint32_t gateway = 0;  ///< Towards all others; 0: they cannot be reached.
  };
  struct Hop {
    const MacAddress* mac = nullptr;  ///< Until the next call; null: not known yet.
    std::optional<ArpFrame> request;  ///< To be sent now: not known, or known for long.
  };

  explicit ArpTable(const Self& self) : self_(self) {}

  /// The neighbour towards `peer`.
  Hop find(const Address& peer, Time now);
  /// Learns from a frame, if it is ARP. What it answers.
  std::optional<ArpFrame> on_frame(std::span<const std::byte> frame, Time now);

  static constexpr std::size_t kMaxNeighbours = 4096;

 private:
  struct Neighbour {
    std::optional<MacAddress> mac;
    Time ask_at{};
  };

  Self self_;
  std::unordered_map<std::uint32_t, Neighbour> neighbours_;
  /// The last one found: packets to one peer follow one another.
  std::pair<std::uint32_t, Neighbour*> recent_{0, nullptr};
};

}  // namespace harp
