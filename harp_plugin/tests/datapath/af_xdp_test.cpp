// AF_XDP sockets between two hosts, in the kernel's copy mode, which is what a veth pair has.
#include "datapath/xdp/af_xdp.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "datapath/datapath.hpp"
#include "datapath/packets.hpp"
#include "datapath/two_hosts.hpp"
#include "datapath/udp.hpp"

namespace harp::af_xdp_test {
namespace {

constexpr std::array<std::uint16_t, 2> kFamilies{4, 6};

constexpr Time kNow{std::chrono::seconds(1)};

/// Skips where the machine has no network namespaces, or lets nobody load BPF programs.
#define HARP_NEEDS_XDP(hosts)                             \
  HARP_NEEDS_HOSTS(hosts)                                 \
  if (!may_load_programs(hosts)) {                        \
    GTEST_SKIP() << "no privilege for BPF programs here"; \
  }

struct Opened {
  std::shared_ptr<AfXdpDevice> device;
  std::vector<std::unique_ptr<Datapath>> engines;
  std::string error;
};

AfXdpOptions options_for(int host, std::uint16_t family, std::size_t mtu, std::size_t engines) {
  return {.interface = "harp0",
          .sockets = {.local = TwoHosts::address(host, family), .mtu_bytes = mtu},
          .engines = engines};
}

Opened open_on(const TwoHosts& hosts, int host, const AfXdpOptions& options) {
  return hosts.on(host, [&] {
    Opened opened;
    opened.device = AfXdpDevice::open(options, &opened.error);
    for (std::size_t i = 0; opened.device != nullptr && i < options.engines; ++i) {
      opened.engines.push_back(opened.device->open_engine(i, &opened.error));
      if (opened.engines.back() == nullptr) {
        break;
      }
    }
    return opened;
  });
}

Opened open_on(const TwoHosts& hosts,
               int host,
               std::uint16_t family = 4,
               std::size_t mtu = 1500,
               std::size_t engines = 1) {
  Opened opened = open_on(hosts, host, options_for(host, family, mtu, engines));
  if (!opened.error.empty()) {
    throw std::runtime_error(opened.error);  // GoogleTest reports it, and the test ends.
  }
  return opened;
}

void flush(Datapath& datapath) {
  for (int tries = 0; !datapath.flush(kNow); ++tries) {
    ASSERT_LT(tries, 1'000'000);
  }
}

bool may_load_programs(const TwoHosts& hosts) {
  const std::string error = open_on(hosts, 0, options_for(0, 4, 1500, 1)).error;
  return error.find("CAP_BPF") == std::string::npos;
}

/// Gets the kernels to know one another's addresses, so that nothing more goes by them.
void greet(Datapath& from, Datapath& to) {
  const PacketBytes hello = pattern(20, 99);
  send_split(from, {.peer = to.address()}, hello);
  flush(from);
  ASSERT_EQ(take(to, 1).size(), 1U);
  (void)from.flush(kNow + std::chrono::seconds(10));  // What it was told of the neighbour is old.
}

/// Everything of `sizes` leaves `from` and arrives at `to` as it was.
void expect_carried(Datapath& from, Datapath& to, const std::vector<std::size_t>& sizes) {
  std::set<PacketBytes> expected;
  std::set<PacketBytes> arrived;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto packet = expected.insert(pattern(sizes[i], i)).first;
    send_split(from, {.peer = to.address()}, *packet);
  }
  flush(from);
  for (const Received& received : take(to, sizes.size())) {
    arrived.insert(received.packet);
    Address source = received.route.peer;
    source.port = from.address().port;
    EXPECT_EQ(source, from.address());
  }
  EXPECT_TRUE(arrived == expected) << arrived.size() << " of " << expected.size();
}

TEST(AfXdp, packets_of_all_sizes_pass_in_both_families) {
  const TwoHosts hosts;
  HARP_NEEDS_XDP(hosts);
  for (const std::uint16_t family : kFamilies) {
    const Opened left = open_on(hosts, 0, family);
    const Opened right = open_on(hosts, 1, family);
    Datapath& here = *left.engines.at(0);
    Datapath& there = *right.engines.at(0);
    EXPECT_EQ(here.mtu_bytes(), 1500U);
    const std::size_t maximum = 1500 - (family == 4 ? 28 : 48);
    greet(here, there);
    expect_carried(here, there, {1, 40, 41, 64, 999, 1000, maximum - 1, maximum});
    expect_carried(there, here, {1, 40, 41, 64, 999, 1000, maximum - 1, maximum});
    EXPECT_GE(here.stats().packets_received, 8U);
  }
}

TEST(AfXdp, a_packet_above_the_mtu_is_an_error_and_not_sent) {
  const TwoHosts hosts;
  HARP_NEEDS_XDP(hosts);
  const Opened left = open_on(hosts, 0);
  const Opened right = open_on(hosts, 1);
  Datapath& here = *left.engines.at(0);
  Datapath& there = *right.engines.at(0);
  greet(here, there);
  send_split(here, {.peer = there.address()}, pattern(1500 - 27, 1));
  expect_carried(here, there, {100});
  EXPECT_EQ(here.stats().send_errors, 1U);
}

TEST(AfXdp, jumbo_packets_pass_in_pieces) {
  const TwoHosts hosts({.mtu = 9000});
  HARP_NEEDS_XDP(hosts);
  const Opened left = open_on(hosts, 0, 4, 9000);
  const Opened right = open_on(hosts, 1, 4, 9000);
  Datapath& here = *left.engines.at(0);
  Datapath& there = *right.engines.at(0);
  if (here.mtu_bytes() < 9000) {
    GTEST_SKIP() << "frames in pieces need Linux 6.6";
  }
  greet(here, there);
  expect_carried(here, there, {1, 3000, 4000, 4097, 8191, 8192, 8900, 8972, 100});
}

TEST(AfXdp, thousands_of_packets_pass_and_frames_come_back) {
  const TwoHosts hosts;
  HARP_NEEDS_XDP(hosts);
  const Opened left = open_on(hosts, 0);
  const Opened right = open_on(hosts, 1);
  Datapath& here = *left.engines.at(0);
  Datapath& there = *right.engines.at(0);
  greet(here, there);
  for (int round = 0; round < 1000; ++round) {
    const std::vector<std::size_t> sizes{1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007};
    expect_carried(here, there, sizes);
  }
  EXPECT_EQ(here.stats().send_errors, 0U);
}

TEST(AfXdp, an_end_of_udp_sockets_notices_no_difference) {
  for (const std::uint16_t family : kFamilies) {
    const TwoHosts hosts;
    HARP_NEEDS_XDP(hosts);
    const Opened left = open_on(hosts, 0, family);
    std::string error;
    const auto there = hosts.on(
        1, [&] { return UdpDatapath::open({.local = TwoHosts::address(1, family)}, &error); });
    ASSERT_NE(there, nullptr) << error;
    Datapath& here = *left.engines.at(0);
    greet(here, *there);
    expect_carried(here, *there, {1, 40, 41, 1000, 1400, 1400, 1400});
    expect_carried(*there, here, {1, 40, 41, 1000, 1400, 1400, 1400});
  }
}

TEST(AfXdp, large_sends_of_a_kernel_reach_a_jumbo_end_in_one_piece_each) {
  const TwoHosts hosts({.mtu = 9000});
  HARP_NEEDS_XDP(hosts);
  const Opened left = open_on(hosts, 0, 4, 9000);
  std::string error;
  const auto there = hosts.on(1, [&] {
    return UdpDatapath::open({.local = TwoHosts::address(1, 4), .mtu_bytes = 9000}, &error);
  });
  ASSERT_NE(there, nullptr) << error;
  const std::vector<std::size_t> sizes(40, 1400);  // One segmented send of 56,000 bytes.
  expect_carried(*there, *left.engines.at(0), sizes);
}

TEST(AfXdp, a_peer_on_this_host_is_reached_through_the_kernel) {
  const TwoHosts hosts;
  HARP_NEEDS_XDP(hosts);
  const Opened left = open_on(hosts, 0);
  std::string error;
  const auto beside =
      hosts.on(0, [&] { return UdpDatapath::open({.local = TwoHosts::address(0, 4)}, &error); });
  ASSERT_NE(beside, nullptr) << error;
  expect_carried(*left.engines.at(0), *beside, {1, 1000});
  expect_carried(*beside, *left.engines.at(0), {1, 1000});
}

TEST(AfXdp, packets_on_the_queue_of_another_engine_are_handed_over) {
  const TwoHosts hosts({.queues = 2});
  HARP_NEEDS_XDP(hosts);
  const Opened left = open_on(hosts, 0, 4, 1500, 2);
  const Opened right = open_on(hosts, 1, 4, 1500, 2);
  Datapath& here = *left.engines.at(0);  // Sends on queue 0, and so the packets arrive there.
  Datapath& first = *right.engines.at(0);
  Datapath& second = *right.engines.at(1);
  // The kernel carries the first one, by the queue of whichever core it runs on.
  send_split(here, {.peer = first.address()}, pattern(20, 99));
  flush(here);
  while (take_burst(first).empty()) {
    ASSERT_TRUE(take_burst(second).empty());
  }
  (void)here.flush(kNow + std::chrono::seconds(10));
  const std::uint64_t before = first.stats().handed_over;
  const PacketBytes packet = pattern(500, 1);
  send_split(here, {.peer = second.address()}, packet);
  flush(here);
  EXPECT_TRUE(take_burst(second).empty());
  ASSERT_TRUE(second.prepare_to_wait());
  EXPECT_FALSE(is_readable(second.descriptor()));
  EXPECT_TRUE(take_burst(first).empty());  // Not its own: it passes it on.
  EXPECT_TRUE(is_readable(second.descriptor()));
  const auto received = take(second, 1);
  ASSERT_EQ(received.size(), 1U);
  EXPECT_EQ(received[0].packet, packet);
  EXPECT_EQ(received[0].route.peer, here.address());
  EXPECT_EQ(first.stats().handed_over, before + 1);
}

TEST(AfXdp, the_interface_is_itself_again_afterwards) {
  const TwoHosts hosts;
  HARP_NEEDS_XDP(hosts);
  for (int round = 0; round < 3; ++round) {
    const Opened left = open_on(hosts, 0);
  }
  const Opened right = open_on(hosts, 1);
  std::string error;
  const auto here =
      hosts.on(0, [&] { return UdpDatapath::open({.local = TwoHosts::address(0, 4)}, &error); });
  ASSERT_NE(here, nullptr) << error;
  expect_carried(*here, *right.engines.at(0), {1, 1000});
  expect_carried(*right.engines.at(0), *here, {1, 1000});
}

void expect_says(const std::string& error, const std::string& word) {
  EXPECT_NE(error.find(word), std::string::npos) << error;
}

TEST(AfXdp, what_the_system_refuses_is_named) {
  const TwoHosts hosts;
  HARP_NEEDS_XDP(hosts);
  const Opened first = open_on(hosts, 0);
  expect_says(open_on(hosts, 0, options_for(0, 4, 1500, 1)).error, "another XDP program");
  expect_says(open_on(hosts, 1, options_for(1, 4, 1500, 2)).error, "1 queue(s)");
  AfXdpOptions options = options_for(1, 4, 1500, 1);
  options.interface = "lo";
  expect_says(open_on(hosts, 1, options).error, "no Ethernet");
  options.interface = "harp7";
  expect_says(open_on(hosts, 1, options).error, "harp7: No such device");
  options = options_for(0, 4, 1500, 1);  // The other host's address.
  expect_says(open_on(hosts, 1, options).error, "10.93.0.1");
}

TEST(AfXdp, without_privilege_the_error_says_which_is_needed) {
  const TwoHosts hosts;
  HARP_NEEDS_XDP(hosts);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    const std::string error = hosts.on(1, [&] {
      std::string why;
      const bool is_nobody = ::seteuid(kNobody) == 0;
      (void)AfXdpDevice::open(options_for(1, 4, 1500, 1), &why);
      return is_nobody && ::seteuid(0) == 0 ? why : "cannot become nobody";
    });
    std::_Exit(error.find("CAP_BPF") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace harp::af_xdp_test
