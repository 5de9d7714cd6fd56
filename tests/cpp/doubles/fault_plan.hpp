// What a LoopbackHub does to the traffic between its ranks: data, so that a test reads like a list
// of mishaps, and accountable: a fault that never fired shows up in LoopbackHub::unfired_faults(),
// so that a test cannot pass because its fault missed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// Thread: none of its own; hand it to a LoopbackHub by value.
class FaultPlan {
 public:
  enum class LinkFaultKind : std::uint8_t { kCut, kStall };

  /// Something that happens once, to the channels of one direction between two ranks.
  struct LinkFault {
    LinkFaultKind kind = LinkFaultKind::kCut;
    std::uint32_t source = 0;
    std::uint32_t destination = 0;
    std::uint64_t message = 0;
    bool fired = false;
  };

  /// `seed` decides every random choice of the hub; the same turns then give the same run.
  explicit FaultPlan(std::uint64_t seed = 1) : seed_(seed) {}

  /// Every piece waits for 0 .. `most_polls` polls of its receiver.
  FaultPlan& delay(unsigned most_polls);
  /// Messages travel in pieces of random size of at most `max_bytes` (rounded up to 64), and the
  /// fragments at hand are given out in random order.
  FaultPlan& fragment(std::size_t max_bytes);
  /// A channel holds at most `bytes` (at least 64) that its receiver has not taken; senders then
  /// wait.
  FaultPlan& capacity(std::size_t bytes);
  /// Breaks the channel from `source` to `destination` before the last piece of message `message`:
  /// both ends fail with kPeerFailed naming the other, and what was under way is lost.
  FaultPlan& cut(std::uint32_t source, std::uint32_t destination, std::uint64_t message);
  /// From message `message` on, nothing arrives any more, and nobody is told.
  FaultPlan& stall(std::uint32_t source, std::uint32_t destination, std::uint64_t message);

  std::uint64_t seed() const { return seed_; }
  unsigned most_delay_polls() const { return most_delay_polls_; }
  std::size_t most_fragment_bytes() const { return most_fragment_bytes_; }
  std::size_t capacity_bytes() const { return capacity_bytes_; }

  // For the hub: what applies now, and what has happened.
  /// Whether a fault of `kind` is due on `id` at `message`; marks it as fired.
  bool fire(LinkFaultKind kind, const ChannelId& id, std::uint64_t message);
  /// Whether fire() would say true; marks nothing.
  bool due(LinkFaultKind kind, const ChannelId& id, std::uint64_t message) const;
  void note_delayed() { delayed_ = true; }
  void note_fragmented() { fragmented_ = true; }
  /// One line for each fault that has not happened yet.
  std::vector<std::string> unfired() const;

 private:
  std::uint64_t seed_;
  unsigned most_delay_polls_ = 0;
  std::size_t most_fragment_bytes_ = 0;
  std::size_t capacity_bytes_ = std::size_t{256} << 10;
  std::vector<LinkFault> link_faults_;
  bool delayed_ = false;
  bool fragmented_ = false;
};

}  // namespace lightcc
