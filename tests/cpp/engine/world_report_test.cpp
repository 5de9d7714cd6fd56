// What is told of a world when it stands.
#include "lightcc/engine/world_report.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::world_report_test {
namespace {

bool tells(const std::vector<std::string>& lines, const std::string& text) {
  for (const std::string& line : lines) {
    if (line.find(text) != std::string::npos) {
      return true;
    }
  }
  return false;
}

Membership on_one_host(int rank) {
  Membership world;
  world.topology = {
      .rank = rank, .size = 3, .local_rank = rank, .local_size = 3, .hosts = {{0, 1, 2}}};
  world.host_of = {0, 0, 0};
  world.hosts = {{0, 1, 2}};
  return world;
}

TEST(WorldReport, rank_0_tells_of_the_world_and_each_rank_of_itself) {
  const auto lines = describe_world(on_one_host(0), WorldOptions());
  EXPECT_TRUE(tells(lines, "lightcc 0."));
  EXPECT_TRUE(tells(lines, ", 3 ranks on 1 host: [0-2]"));
  EXPECT_TRUE(tells(lines, "collectives of all ranks run in shared memory, 1 lane"));
  EXPECT_TRUE(tells(lines, "rank 0 is local rank 0 of 3 on "));
  EXPECT_TRUE(tells(lines, "network: none, as all ranks share this host's memory"));
  EXPECT_TRUE(tells(lines, "all variables are at their defaults"));
  const auto other = describe_world(on_one_host(2), WorldOptions());
  EXPECT_FALSE(tells(other, "3 ranks on 1 host"));
  EXPECT_TRUE(tells(other, "rank 2 is local rank 2 of 3 on "));
}

TEST(WorldReport, hosts_are_told_with_their_ranks) {
  Membership world = on_one_host(0);
  world.host_of = {0, 1, 0};
  world.hosts = {{0, 2}, {1}};
  EXPECT_TRUE(tells(describe_world(world, WorldOptions()), "3 ranks on 2 hosts: [0, 2] [1]"));
}

TEST(WorldReport, only_what_was_set_to_something_else_is_told) {
  WorldOptions options;
  options.knobs.num_lanes = 2;
  options.knobs.given = {"LIGHT_NUM_STREAMS", "LIGHT_TCP_RATE"};
  EXPECT_TRUE(tells(describe_world(on_one_host(1), options),
                    "variables that are not at their defaults: LIGHT_NUM_STREAMS=2"));
  EXPECT_FALSE(tells(describe_world(on_one_host(1), options), "LIGHT_TCP_RATE"));
}

}  // namespace
}  // namespace lightcc::world_report_test
