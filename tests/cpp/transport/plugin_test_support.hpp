// Shared by the plugin transport's tests: the plugins that the build makes, worlds of transports
// over them in one process, and a connection that belongs to no channel.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/transport/plugin/plugin_transport.hpp"

#include "transport/transport_test_support.hpp"

namespace lightcc::plugin_test {

using namespace transport_test;  // NOLINT: the tests' own helpers

inline constexpr std::uint64_t kWorld = 77;
inline const std::string kSecret = "the secret of this test";

/// Read by the plugins when they are first loaded.
inline const int kEnvironment = [] {
  ::setenv("HARP_IFNAME", "=lo", 1);
  ::setenv("REFTCP_IFNAME", "lo", 1);
  ::setenv("HARP_PEER_TIMEOUT", "5", 1);
  return 0;
}();

struct PluginUnderTest {
  const char* name;
  const char* path;
};
/// None where the build makes none.
inline const std::vector<PluginUnderTest> kPlugins = {
#ifdef LIGHTCC_TEST_HARP
    {"reftcp", LIGHTCC_TEST_REFTCP},
    {"harp", LIGHTCC_TEST_HARP},
#endif
};

/// Names tests that run once for each plugin.
inline std::string plugin_name(const ::testing::TestParamInfo<PluginUnderTest>& info) {
  return info.param.name;
}

inline PluginTransportOptions make_options(const std::string& path, int connections = 1) {
  PluginTransportOptions options;
  options.path = path;
  options.address = SocketAddress::resolve("127.0.0.1:0").value();
  options.secret = kSecret;
  options.world_id = kWorld;
  options.connections = connections;
  return options;
}

inline std::unique_ptr<Transport> make_transport(const PluginTransportOptions& options) {
  auto transport = make_plugin_transport(options);
  EXPECT_TRUE(transport.ok()) << transport.status().message();
  return transport.ok() ? std::move(transport).value() : nullptr;
}

/// Two transports, rank 0 sending to rank 1 on one channel.
struct Pair : TransportPair {
  explicit Pair(const std::string& path, int connections = 1)
      : Pair(make_options(path, connections), make_options(path, connections)) {}
  Pair(const PluginTransportOptions& sender_options, const PluginTransportOptions& receiver_options)
      : TransportPair(make_transport(sender_options), make_transport(receiver_options)) {}
};

}  // namespace lightcc::plugin_test
