#include "endpoint/settings.hpp"

#include <chrono>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/crc32c.hpp"
#include "endpoint/profile.hpp"

namespace harp::settings_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Environment = std::map<std::string, std::string>;

struct Outcome {
  std::optional<Settings> settings;
  std::string error;
};

/// The profile is "p.conf".
Outcome read(const Environment& environment, std::string_view profile = "") {
  Outcome outcome;
  const auto parsed = Profile::parse(profile, "p.conf", &outcome.error);
  EXPECT_TRUE(parsed) << outcome.error;
  outcome.settings = read_settings(
      [&](const char* name) -> const char* {
        const auto found = environment.find(name);
        return found != environment.end() ? found->second.c_str() : nullptr;
      },
      parsed.value_or(Profile()),
      &outcome.error);
  return outcome;
}

Settings accepted(const Environment& environment, std::string_view profile = "") {
  const Outcome outcome = read(environment, profile);
  EXPECT_TRUE(outcome.settings) << outcome.error;
  EXPECT_EQ(outcome.error, "");
  return outcome.settings.value_or(Settings{});
}

/// The error names the variable with its value, and what is allowed.
void expect_refused(const std::string& name, const std::string& value, const std::string& allowed) {
  const Outcome outcome = read({{name, value}});
  EXPECT_FALSE(outcome.settings) << name << "=" << value;
  EXPECT_TRUE(outcome.error.starts_with(name + "=" + value + ":")) << outcome.error;
  EXPECT_NE(outcome.error.find(allowed), std::string::npos) << outcome.error;
}

void expect_defaults(const Settings& settings) {
  EXPECT_EQ(settings.interfaces, "");
  EXPECT_EQ(settings.peer_timeout, seconds(30));
  EXPECT_EQ(settings.mode, RunMode::kInline);
  EXPECT_EQ(settings.engines, 1);
  EXPECT_TRUE(settings.cores.empty());
  EXPECT_EQ(settings.paths, 8);
  EXPECT_FALSE(settings.fault);
  EXPECT_EQ(settings.payload_crc, crc32c_is_fast());
  EXPECT_TRUE(settings.competes);
  EXPECT_TRUE(settings.stat);
  EXPECT_EQ(settings.stat_folder, "/dev/shm");
}

constexpr const char* kNames =
    "HARP_IFNAME NCCL_SOCKET_IFNAME HARP_PEER_TIMEOUT HARP_MODE LIGHT_PEER_TIMEOUT "
    "HARP_ENGINES HARP_CORES HARP_PATHS HARP_FAULT HARP_DATAPATH HARP_DPDK HARP_DPDK_MTU "
    "HARP_DPDK_LIBRARY HARP_PAYLOAD_CRC HARP_COMPETE HARP_STAT HARP_STAT_DIR ";

TEST(Settings, an_empty_environment_gives_the_defaults) {
  expect_defaults(accepted({}));
}

TEST(Settings, a_variable_that_is_set_to_nothing_is_not_set) {
  Environment environment;
  std::istringstream names(kNames);
  for (std::string name; names >> name;) {
    environment[name] = "";
  }
  expect_defaults(accepted(environment));
}

TEST(Settings, every_variable_sets_what_it_says) {
  const Settings settings = accepted({{"HARP_IFNAME", "=eth0"},
                                      {"HARP_PEER_TIMEOUT", "2.5"},
                                      {"HARP_MODE", "thread"},
                                      {"HARP_ENGINES", "4"},
                                      {"HARP_CORES", "2,3,1023"},
                                      {"HARP_PATHS", "64"},
                                      {"HARP_DATAPATH", "udp"},
                                      {"HARP_FAULT", "loss=0.25,seed=9"},
                                      {"HARP_PAYLOAD_CRC", "0"},
                                      {"HARP_COMPETE", "0"},
                                      {"HARP_STAT", "0"},
                                      {"HARP_STAT_DIR", "/run/harp"}});
  EXPECT_EQ(settings.interfaces, "=eth0");
  EXPECT_EQ(settings.peer_timeout, milliseconds(2500));
  EXPECT_EQ(settings.mode, RunMode::kThread);
  EXPECT_EQ(settings.engines, 4);
  EXPECT_EQ(settings.cores, (std::vector{2, 3, 1023}));
  EXPECT_EQ(settings.paths, 64);
  ASSERT_TRUE(settings.fault);
  EXPECT_DOUBLE_EQ(settings.fault->impairment.loss, 0.25);
  EXPECT_EQ(settings.fault->seed, 9U);
  EXPECT_EQ(settings.payload_crc, false);
  EXPECT_FALSE(settings.competes);
  EXPECT_FALSE(settings.stat);
  EXPECT_EQ(settings.stat_folder, "/run/harp");
}

TEST(Settings, payloads_carry_a_crc_over_sockets_and_over_dpdk_if_that_is_asked_for) {
  EXPECT_EQ(wants_payload_crc({}), crc32c_is_fast());
  const Environment dpdk{{"HARP_DATAPATH", "dpdk"}, {"HARP_DPDK", "0000:00:06.0@192.0.2.1/24"}};
  EXPECT_EQ(accepted(dpdk).payload_crc, false);
  Environment asked = dpdk;
  asked["HARP_PAYLOAD_CRC"] = "1";
  EXPECT_EQ(accepted(asked).payload_crc, true);
  EXPECT_EQ(accepted({{"HARP_PAYLOAD_CRC", "0"}}).payload_crc, false);
}

TEST(Settings, modes_and_datapaths_are_known_by_name) {
  EXPECT_EQ(accepted({{"HARP_MODE", "inline"}}).mode, RunMode::kInline);
  EXPECT_EQ(accepted({{"HARP_MODE", "adaptive"}}).mode, RunMode::kAdaptive);
  EXPECT_EQ(accepted({{"HARP_MODE", "thread"}}).mode, RunMode::kThread);
  for (const std::string mode : {"Inline", "threads", "poll", " inline", "1"}) {
    expect_refused("HARP_MODE", mode, "inline, adaptive or thread");
  }
  EXPECT_EQ(accepted({{"HARP_DATAPATH", "auto"}}).datapath, DatapathKind::kAuto);
  EXPECT_EQ(accepted({{"HARP_DATAPATH", "udp"}}).datapath, DatapathKind::kUdp);
  EXPECT_EQ(accepted({{"HARP_DATAPATH", "af_xdp"}}).datapath, DatapathKind::kAfXdp);
  for (const std::string datapath : {"UDP", "tcp", "rdma"}) {
    expect_refused("HARP_DATAPATH", datapath, "auto");
  }
}

TEST(Settings, devices_of_dpdk_are_read_with_their_addresses) {
  const Settings settings = accepted(
      {{"HARP_DATAPATH", "dpdk"},
       {"HARP_DPDK", "0000:00:06.0@192.0.2.1/24@192.0.2.254;net_vhost0,iface=/a@10.0.0.1/8"},
       {"HARP_DPDK_MTU", "8500"},
       {"HARP_DPDK_LIBRARY", "/opt/libharp-dpdk.so"}});
  EXPECT_EQ(settings.datapath, DatapathKind::kDpdk);
  EXPECT_EQ(settings.dpdk_mtu_bytes, 8500);
  EXPECT_EQ(settings.dpdk_library, "/opt/libharp-dpdk.so");
  ASSERT_EQ(settings.dpdk_devices.size(), 2U);
  const DpdkDevice& nic = settings.dpdk_devices[0];
  EXPECT_EQ(nic.device, "0000:00:06.0");
  EXPECT_EQ(to_string(nic.address), "192.0.2.1:0");
  EXPECT_EQ(nic.prefix, 24U);
  ASSERT_TRUE(nic.gateway);
  EXPECT_EQ(to_string(*nic.gateway), "192.0.2.254:0");
  const DpdkDevice& virtual_nic = settings.dpdk_devices[1];
  EXPECT_EQ(virtual_nic.device, "net_vhost0,iface=/a");
  EXPECT_EQ(virtual_nic.prefix, 8U);
  EXPECT_FALSE(virtual_nic.gateway);
}

TEST(Settings, devices_of_dpdk_that_make_no_sense_are_refused) {
  for (const std::string value : {"nic",
                                  "@10.0.0.1/24",
                                  "nic@10.0.0.1",
                                  "nic@10.0.0/24",
                                  "nic@10.0.0.1/33",
                                  "nic@10.0.0.1/",
                                  "nic@10.0.0.1/24@",
                                  "nic@10.0.0.1/24@gateway",
                                  "nic@fd00::1/64",
                                  ";nic@10.0.0.1/24"}) {
    expect_refused("HARP_DPDK", value, "DEVICE@IPV4/PREFIX[@GATEWAY]");
  }
  expect_refused("HARP_DPDK_MTU", "575", "576 to 9600");
  expect_refused("HARP_DPDK_MTU", "9601", "576 to 9600");
  expect_refused("HARP_DATAPATH", "dpdk", "HARP_DPDK beside it");
}

TEST(Settings, numbers_are_within_their_bounds_and_nothing_else) {
  for (const std::string value : {"1", "64"}) {
    EXPECT_EQ(std::to_string(accepted({{"HARP_ENGINES", value}}).engines), value);
    EXPECT_EQ(std::to_string(accepted({{"HARP_PATHS", value}}).paths), value);
  }
  for (const std::string value :
       {"0", "65", "-1", "+1", "1.5", "x", "4x", " 4", "4 ", "0x4", "99999999999999999999"}) {
    expect_refused("HARP_ENGINES", value, "a number from 1 to 64");
    expect_refused("HARP_PATHS", value, "a number from 1 to 64");
  }
  for (const std::string value : {"2", "-1", "yes", "off"}) {
    expect_refused("HARP_PAYLOAD_CRC", value, "a number from 0 to 1");
    expect_refused("HARP_COMPETE", value, "a number from 0 to 1");
  }
}

TEST(Settings, a_timeout_is_seconds_with_or_without_a_fraction) {
  EXPECT_EQ(accepted({{"HARP_PEER_TIMEOUT", "0.1"}}).peer_timeout, milliseconds(100));
  EXPECT_EQ(accepted({{"HARP_PEER_TIMEOUT", "86400"}}).peer_timeout, std::chrono::hours(24));
  for (const std::string value :
       {"0", "0.09", "86400.1", "-5", "nan", "inf", "30s", "x", " 30", "1e9", ","}) {
    expect_refused("HARP_PEER_TIMEOUT", value, "seconds from 0.1 to 86400");
  }
}

TEST(Settings, cores_are_numbers_with_commas_between) {
  EXPECT_EQ(accepted({{"HARP_CORES", "0"}}).cores, std::vector{0});
  for (const std::string value : {"x", "1,x", ",1", "1,,2", "-1", "1024", "1;2", "1, 2", "2-3"}) {
    expect_refused("HARP_CORES", value, "numbers of cores");
  }
}

TEST(Settings, the_timeout_is_inherited_from_lightcc_and_can_be_set_apart) {
  EXPECT_EQ(accepted({{"LIGHT_PEER_TIMEOUT", "7"}}).peer_timeout, seconds(7));
  EXPECT_EQ(accepted({{"LIGHT_PEER_TIMEOUT", "7"}, {"HARP_PEER_TIMEOUT", ""}}).peer_timeout,
            seconds(7));
  EXPECT_EQ(accepted({{"LIGHT_PEER_TIMEOUT", "7"}, {"HARP_PEER_TIMEOUT", "3"}}).peer_timeout,
            seconds(3));
  expect_refused("LIGHT_PEER_TIMEOUT", "never", "seconds from 0.1 to 86400");
  // One that does not count is not looked at.
  EXPECT_EQ(accepted({{"LIGHT_PEER_TIMEOUT", "never"}, {"HARP_PEER_TIMEOUT", "3"}}).peer_timeout,
            seconds(3));
}

TEST(Settings, interfaces_are_inherited_from_nccl_and_can_be_set_apart) {
  EXPECT_EQ(accepted({{"NCCL_SOCKET_IFNAME", "^lo"}}).interfaces, "^lo");
  EXPECT_EQ(accepted({{"NCCL_SOCKET_IFNAME", "^lo"}, {"HARP_IFNAME", "ib"}}).interfaces, "ib");
}

TEST(Settings, the_folder_of_counters_is_an_absolute_path) {
  for (const std::string value : {"stat", "./stat", "~/stat", " /stat"}) {
    expect_refused("HARP_STAT_DIR", value, "an absolute path");
  }
  expect_refused("HARP_STAT", "2", "a number from 0 to 1");
}

TEST(Settings, a_fault_that_there_is_not_is_named) {
  const Outcome outcome = read({{"HARP_FAULT", "loss=0.1,dely=1ms"}});
  EXPECT_FALSE(outcome.settings);
  EXPECT_TRUE(outcome.error.starts_with("HARP_FAULT=loss=0.1,dely=1ms:")) << outcome.error;
  EXPECT_NE(outcome.error.find("'dely=1ms'"), std::string::npos) << "the item: " << outcome.error;
}

TEST(Settings, of_several_problems_one_is_reported) {
  const Outcome outcome = read({{"HARP_MODE", "fast"}, {"HARP_PATHS", "0"}});
  EXPECT_FALSE(outcome.settings);
  EXPECT_NE(outcome.error.find("HARP_MODE=fast"), std::string::npos) << outcome.error;
  EXPECT_EQ(outcome.error.find("HARP_PATHS"), std::string::npos) << outcome.error;
}

TEST(Settings, a_profile_sets_what_the_environment_does_not) {
  const std::string profile =
      "# Which NIC goes with which GPU.\nHARP_IFNAME==eth1,eth2\nHARP_ENGINES=4\nHARP_MODE=thread\n"
      "HARP_DATAPATH=dpdk\nHARP_DPDK=0000:00:06.0@192.0.2.1/24\nHARP_OF_TOMORROW=1\n";
  const Settings settings = accepted({{"HARP_MODE", "adaptive"}}, profile);
  EXPECT_EQ(settings.interfaces, "=eth1,eth2");
  EXPECT_EQ(settings.engines, 4);
  EXPECT_EQ(settings.mode, RunMode::kAdaptive);
  EXPECT_EQ(settings.datapath, DatapathKind::kDpdk);
  ASSERT_EQ(settings.dpdk_devices.size(), 1U);
  // Even by nothing, which means the default, and whatever the profile's value is.
  EXPECT_EQ(accepted({{"HARP_ENGINES", ""}}, profile).engines, 1);
  EXPECT_EQ(accepted({{"HARP_ENGINES", "2"}}, "HARP_ENGINES=many").engines, 2);
}

TEST(Settings, what_is_inherited_comes_after_the_profile) {
  const std::string profile = "HARP_IFNAME=eth1\nHARP_PEER_TIMEOUT=7\n";
  const Settings settings =
      accepted({{"NCCL_SOCKET_IFNAME", "eth0"}, {"LIGHT_PEER_TIMEOUT", "3"}}, profile);
  EXPECT_EQ(settings.interfaces, "eth1");
  EXPECT_EQ(settings.peer_timeout, seconds(7));
  EXPECT_EQ(accepted({{"NCCL_SOCKET_IFNAME", "eth0"}, {"HARP_IFNAME", ""}}, profile).interfaces,
            "eth0");
}

TEST(Settings, a_wrong_value_of_the_profile_is_told_with_its_line) {
  EXPECT_EQ(read({}, "\n# Fast.\n  HARP_PATHS=65\n").error,
            "p.conf:3: HARP_PATHS=65: expected a number from 1 to 64");
  EXPECT_EQ(read({{"HARP_PATHS", "0"}}, "HARP_PATHS=65").error,
            "HARP_PATHS=0: expected a number from 1 to 64");
  const std::string error = read({}, "HARP_ENGINES=2\nHARP_DATAPATH=dpdk\n").error;
  EXPECT_TRUE(error.starts_with("p.conf:2: HARP_DATAPATH=dpdk: expected HARP_DPDK")) << error;
}

}  // namespace
}  // namespace harp::settings_test
