// How paths find flows that a NIC's hash sends to the queue of the session's own engine.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>

#include <gtest/gtest.h>

#include "datapath/datapath.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"
#include "runtime/stack.hpp"
#include "runtime/world.hpp"

namespace harp::stack_steering_test {
namespace {

/// A quarter of all flows, as of four engines, comes to the right queue; none of the first paths.
bool is_astray(const Route& route) {
  return route.local_port < 8 || route.local_port % 4 != 3;
}

/// A client, and a server with the NIC of several engines.
struct Scene {
  explicit Scene(const std::function<bool(const Route&)>& hash, std::uint64_t seed = 1)
      : world(1500, seed) {
    server.tap->leads_astray = [this, hash](const Route& route) {
      const bool astray = hash(route);
      arrived += 1;
      arrived_astray += astray ? 1 : 0;
      return astray;
    };
    server.tap->watcher = [this](const Route& route, auto, auto) {
      answered.insert(route.local_port);
      return true;
    };
    ends = connect(world, client, server);
  }
  void forget() {
    arrived = 0;
    arrived_astray = 0;
    answered.clear();
  }
  void transfer_10_mb(int times) {
    for (int i = 0; i < times; ++i) {
      transfer(world, *ends.client, *ends.server, 10'000'000);
    }
  }
  SessionStats stats() const { return client.stack->session_stats(); }

  World world;
  Node& client = world.add();
  Node& server = world.add();
  Ends ends;
  std::size_t arrived = 0;
  std::size_t arrived_astray = 0;
  std::set<std::uint16_t> answered;
};

/// A path that is drawn seldom learns late.
constexpr int kTransfersToLearn = 5;

class StackSteeringSeed : public testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, StackSteeringSeed, testing::Range<std::uint64_t>(1, 4));

TEST_P(StackSteeringSeed, paths_and_answers_move_until_all_packets_come_to_their_engine) {
  Scene scene(is_astray, GetParam());
  scene.transfer_10_mb(kTransfersToLearn);
  const SessionStats learned = scene.stats();
  EXPECT_GE(learned.paths_moved, 8U) << "each path at least once";
  EXPECT_EQ(learned.data_bytes_retransmitted, 0U);

  scene.forget();
  scene.transfer_10_mb(1);
  EXPECT_GT(scene.arrived, 1000U);
  EXPECT_EQ(scene.arrived_astray, 0U);
  EXPECT_EQ(scene.stats().paths_moved, learned.paths_moved);
  EXPECT_EQ(scene.stats().data_bytes_retransmitted, 0U);
  ASSERT_FALSE(scene.answered.empty());
  for (const std::uint16_t port : scene.answered) {
    EXPECT_FALSE(is_astray({.peer = {}, .local_port = port})) << port;
  }
}

TEST(StackSteering, where_no_flow_is_right_every_one_is_tried_once_and_all_data_arrives) {
  Scene scene([](const Route&) { return true; });
  scene.transfer_10_mb(4);
  const std::size_t flows = scene.client.stack->datapath().local_ports();
  EXPECT_EQ(scene.stats().paths_moved, flows - StackConfig{}.paths);
  EXPECT_EQ(scene.stats().data_bytes_retransmitted, 0U);
}

TEST(StackSteering, nothing_moves_where_nothing_comes_astray) {
  Scene scene([](const Route&) { return false; });
  scene.transfer_10_mb(1);
  EXPECT_EQ(scene.stats().paths_moved, 0U);
  EXPECT_EQ(scene.answered.size(), StackConfig{}.paths);
}

}  // namespace
}  // namespace harp::stack_steering_test
