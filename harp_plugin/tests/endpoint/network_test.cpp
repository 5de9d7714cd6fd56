// Two networks in one process, over the loopback interface.
#include "endpoint/network.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "endpoint/connection.hpp"
#include "endpoint/interfaces.hpp"
#include "endpoint/settings.hpp"
#include "runtime/live.hpp"
#include "runtime/stat_publisher.hpp"
#include "telemetry/scratch_folder.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp::network_test {
namespace {

Settings settings_for(RunMode mode) {
  Settings settings;
  settings.interfaces = "=lo";
  settings.mode = mode;
  settings.peer_timeout = std::chrono::seconds(60);
  return settings;
}

/// Two ends of a connection between two networks.
struct Joined {
  explicit Joined(const Settings& settings)
      : left(settings, find_interfaces(settings.interfaces)),
        right(settings, find_interfaces(settings.interfaces)) {
    add();
  }
  void add() {
    Network::Listening listening = right.listen(0);
    pairs.emplace_back();
    LivePair& pair = pairs.back();
    pair.acceptor = std::move(listening.acceptor);
    pair.client = left.connect(0, listening.handle);
    EXPECT_TRUE(eventually([&] {
      pair.server = pair.server ? std::move(pair.server) : pair.acceptor->accept();
      return pair.client->poll() == Channel::Life::kOpen && pair.server != nullptr;
    }));
  }

  Network left;
  Network right;
  std::vector<LivePair> pairs;
};

TEST(Network, two_of_them_transfer_both_ways_in_every_mode) {
  for (const RunMode mode : {RunMode::kInline, RunMode::kAdaptive, RunMode::kThread}) {
    Joined joined(settings_for(mode));
    for (std::uint64_t i = 0; i < 10; ++i) {
      transfer_live(*joined.pairs[0].client, *joined.pairs[0].server, 100'000 * i, i);
      transfer_live(*joined.pairs[0].server, *joined.pairs[0].client, 90'000 * i + 1, i);
    }
  }
}

TEST(Network, several_engines_work_together_on_one_path) {
  Settings settings = settings_for(RunMode::kAdaptive);
  settings.engines = 3;
  settings.cores = {0, 0};
  settings.paths = 1;
  Joined joined(settings);
  for (int i = 0; i < 6; ++i) {
    joined.add();
  }
  for (LivePair& pair : joined.pairs) {
    transfer_live(*pair.client, *pair.server, 200'000, 1);
    transfer_live(*pair.server, *pair.client, 200'000, 2);
  }
}

TEST(Network, promises_as_many_connections_as_its_engines_hold) {
  Settings settings = settings_for(RunMode::kInline);
  EXPECT_EQ(Network(settings, find_interfaces("=lo")).max_connections(), Stack::kMaxSessions);
  settings.engines = 3;
  EXPECT_EQ(Network(settings, find_interfaces("=lo")).max_connections(), 3 * Stack::kMaxSessions);
}

TEST(Network, an_acceptor_that_goes_ends_what_it_has_not_accepted) {
  const Settings settings = settings_for(RunMode::kInline);
  Network left(settings, find_interfaces("=lo"));
  Network right(settings, find_interfaces("=lo"));
  Network::Listening listening = right.listen(0);
  const auto client = left.connect(0, listening.handle);
  EXPECT_TRUE(eventually([&] { return client->poll() == Channel::Life::kOpen; }));
  PacketBytes into(100);
  const auto receive = client->receive(into);
  ASSERT_TRUE(receive);
  listening.acceptor.reset();
  EXPECT_EQ(finished(*client, *receive).error, SessionError::kPeerClosed);
}

TEST(Network, a_handle_of_another_family_is_refused_by_name) {
  const Settings settings = settings_for(RunMode::kInline);
  Network network(settings, find_interfaces("=lo"));
  ConnectHandle handle = network.listen(0).handle;
  EXPECT_EQ(handle.family, 4);
  handle.family = 6;
  try {
    (void)network.connect(0, handle);
    FAIL() << "was accepted";
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("lo"), std::string::npos) << text;
    EXPECT_NE(text.find("family"), std::string::npos) << text;
    EXPECT_NE(text.find("HARP_IFNAME"), std::string::npos) << text;
  }
}

TEST(Network, a_device_without_a_socket_is_refused_with_its_address) {
  Interface device;
  device.name = "gone";
  device.mtu_bytes = 1500;
  device.address.ip[0] = std::byte{192};  // TEST-NET-1: nobody's.
  device.address.ip[2] = std::byte{2};
  device.address.ip[3] = std::byte{9};
  Settings settings = settings_for(RunMode::kInline);
  settings.engines = 2;
  Network network(settings, {device});
  for (int tries = 0; tries < 3; ++tries) {
    try {
      (void)network.listen(0);
      FAIL() << "was accepted";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("192.0.2.9"), std::string::npos) << error.what();
    }
  }
}

TEST(Network, has_a_file_of_counters_while_it_has_engines) {
  const ScratchFolder folder;
  Settings settings = settings_for(RunMode::kInline);
  settings.stat_folder = folder.path();
  settings.engines = 2;
  std::vector<std::string> notices;
  {
    Network network(settings, find_interfaces("=lo"), [&](const std::string& text) {
      notices.push_back(text);
    });
    EXPECT_TRUE(folder.names().empty()) << "no engine yet";
    const Network::Listening listening = network.listen(0);
    ASSERT_EQ(folder.names().size(), 1U);
    const std::string path = folder.file(folder.names()[0]);
    ASSERT_EQ(notices.size(), 1U);
    EXPECT_NE(notices[0].find(path), std::string::npos) << notices[0];
    const StatLayout layout = StatPublisher::layout(2);
    const auto bytes = bytes_of_file(path);
    ASSERT_EQ(bytes.size(), layout.file_bytes());
    // Whoever drives publishes; of the other engine it is the background driver.
    EXPECT_TRUE(eventually([&] {
      (void)listening.acceptor->accept();
      const auto now = bytes_of_file(path);
      return now[layout.first_block()] != std::byte{0} &&
             now[layout.first_block() + layout.block_bytes()] != std::byte{0};
    }));
  }
  EXPECT_TRUE(folder.names().empty());
  EXPECT_EQ(notices.size(), 1U);
}

TEST(Network, removes_the_files_of_counters_that_others_left) {
  const ScratchFolder folder;
  const std::string dead = "harp-1-0123456789abcdef.stat";
  folder.write(dead, encode_stat_head(StatPublisher::layout(1), 1, 0));
  Settings settings = settings_for(RunMode::kInline);
  settings.stat_folder = folder.path();
  Network network(settings, find_interfaces("=lo"));
  const Network::Listening listening = network.listen(0);
  ASSERT_EQ(folder.names().size(), 1U);
  EXPECT_NE(folder.names()[0], dead);
}

TEST(Network, has_no_file_of_counters_where_they_are_switched_off_or_the_folder_takes_none) {
  const ScratchFolder folder;
  Settings off = settings_for(RunMode::kInline);
  off.stat_folder = folder.path();
  off.stat = false;
  Joined silent(off);
  EXPECT_TRUE(folder.names().empty());
  Settings nowhere = settings_for(RunMode::kInline);
  nowhere.stat_folder = folder.file("nowhere");
  nowhere.engines = 2;
  std::vector<std::string> notices;
  Network network(
      nowhere, find_interfaces("=lo"), [&](const std::string& text) { notices.push_back(text); });
  const Network::Listening listening = network.listen(0);
  ASSERT_EQ(notices.size(), 1U) << "once";
  EXPECT_NE(notices[0].find(nowhere.stat_folder), std::string::npos) << notices[0];
  Joined joined(nowhere);
  transfer_live(*joined.pairs[0].client, *joined.pairs[0].server, 100'000, 1);
}

TEST(Network, its_description_names_datapath_mode_devices_competition_and_faults) {
  Settings settings = settings_for(RunMode::kAdaptive);
  std::string error;
  const Network plain(settings, find_interfaces("=lo"));
  for (const std::string word : {"udp", "adaptive", "lo=127.0.0.1"}) {
    EXPECT_NE(plain.description().find(word), std::string::npos) << plain.description();
  }
  EXPECT_EQ(plain.description().find("HARP_FAULT"), std::string::npos);
  EXPECT_EQ(plain.description().find("yields"), std::string::npos);
  settings.competes = false;
  const Network yielding(settings, find_interfaces("=lo"));
  EXPECT_NE(yielding.description().find("yields to TCP"), std::string::npos);
  settings.fault = parse_fault_spec("loss=0.1", &error);
  const Network faulty(settings, find_interfaces("=lo"));
  EXPECT_NE(faulty.description().find("HARP_FAULT"), std::string::npos);
  EXPECT_EQ(faulty.devices().size(), 1U);
}

}  // namespace
}  // namespace harp::network_test
