#include "datapath/faulty.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "datapath/fault_spec.hpp"
#include "datapath/memory.hpp"
#include "datapath/packets.hpp"
#include "datapath/tap.hpp"

namespace harp::faulty_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Time kStart{milliseconds(5)};
const Route kThere{.peer = MemoryDatapath::address_of(1), .local_port = 0};

/// A faulty datapath over a tap over memory, and the end that it sends to.
struct Link {
  explicit Link(std::string_view faults) : there(network, 1) {
    std::string error;
    const auto spec = parse_fault_spec(faults, &error);
    EXPECT_TRUE(spec) << error;
    auto below = std::make_unique<Tap>(std::make_unique<MemoryDatapath>(network, 0));
    tap = below.get();
    here = std::make_unique<FaultyDatapath>(std::move(below), *spec);
    EXPECT_TRUE(here->flush(now));
  }
  void send(std::uint64_t seed, std::uint16_t path = 0) {
    sent.push_back(pattern(100, seed));
    send_split(*here, {.peer = kThere.peer, .local_port = path}, sent.back());
  }
  /// Packets that have arrived at `at`.
  std::vector<Received> arrived(Time at) {
    EXPECT_TRUE(here->flush(at));
    std::vector<Received> all;
    for (auto burst = take_burst(there); !burst.empty(); burst = take_burst(there)) {
      all.insert(all.end(), burst.begin(), burst.end());
    }
    return all;
  }

  Time now = kStart;
  MemoryNetwork network;
  MemoryDatapath there;
  Tap* tap = nullptr;
  std::unique_ptr<FaultyDatapath> here;
  std::vector<PacketBytes> sent;
};

TEST(FaultyDatapath, a_delay_is_kept_to_the_nanosecond) {
  Link link("delay=1ms");
  link.send(1);
  EXPECT_EQ(link.here->next_deadline(), kStart + milliseconds(1));
  EXPECT_EQ(link.arrived(kStart + milliseconds(1) - Duration(1)).size(), 0U);
  link.send(2);  // A flush said what time it is: nearly a millisecond later.
  const auto first = link.arrived(kStart + milliseconds(1));
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].packet, link.sent[0]);
  EXPECT_EQ(link.here->next_deadline(), kStart + milliseconds(2) - Duration(1));
  const auto second = link.arrived(kStart + milliseconds(2));
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second[0].packet, link.sent[1]);
  EXPECT_EQ(link.here->next_deadline(), kNever);
}

TEST(FaultyDatapath, payloads_of_delayed_packets_are_the_callers_again_at_once) {
  Link link("delay=1ms");
  PacketBytes payload = pattern(500, 1);
  const PacketBytes before = payload;
  link.here->send(kThere, {}, payload);
  ASSERT_TRUE(link.here->flush(kStart));
  std::ranges::fill(payload, std::byte{0xee});
  const auto received = link.arrived(kStart + milliseconds(1));
  ASSERT_EQ(received.size(), 1U);
  EXPECT_EQ(received[0].packet, before);
}

TEST(FaultyDatapath, paths_are_told_apart_by_their_local_ports) {
  Link link("dark=0x5");
  for (std::uint16_t path = 0; path < 4; ++path) {
    link.send(path, path);
  }
  const auto received = link.arrived(kStart);
  ASSERT_EQ(received.size(), 2U);
  EXPECT_EQ(received[0].route.local_port, 1U);
  EXPECT_EQ(received[1].route.local_port, 3U);
}

TEST(FaultyDatapath, what_a_full_layer_below_holds_up_leaves_when_it_can) {
  for (const char* const faults : {"loss=0", "delay=1us"}) {
    Link link(faults);
    link.tap->is_blocked = true;
    link.send(1);
    link.send(2);
    EXPECT_FALSE(link.here->flush(kStart + microseconds(1))) << faults;
    EXPECT_FALSE(link.here->flush(kStart + microseconds(2))) << faults;
    EXPECT_TRUE(take_burst(link.there).empty());
    link.tap->is_blocked = false;
    const auto received = link.arrived(kStart + microseconds(3));
    ASSERT_EQ(received.size(), 2U) << faults;
    EXPECT_EQ(received[1].packet, link.sent[1]) << faults;
  }
}

TEST(FaultyDatapath, what_is_discarded_is_not_read_any_more) {
  Link link("loss=0");
  link.tap->is_blocked = true;
  {
    const PacketBytes payload = pattern(500, 1);
    link.here->send(kThere, pattern(40, 1), payload);
    EXPECT_FALSE(link.here->flush(kStart));
    EXPECT_EQ(link.tap->held(), 1U);
    link.here->discard();
  }
  link.tap->is_blocked = false;
  EXPECT_TRUE(link.arrived(kStart).empty());
  link.send(2);
  const auto later = link.arrived(kStart);
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].packet, link.sent[0]);
}

}  // namespace
}  // namespace harp::faulty_test
