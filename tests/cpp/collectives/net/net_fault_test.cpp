// Broken links and abandoned Works: typed errors or waiting, never wrong data, never touched
// memory.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

#include "collectives/net/net_world.hpp"
#include "doubles/fault_plan.hpp"

namespace lightcc::net_test::net_fault_test {
namespace {

constexpr std::size_t kCount = 6000;  // Many chunks of 512 bytes, in float32.
constexpr Reduction kSum{.dtype = DataType::kFloat32, .op = ReduceOp::kSum};

std::byte* raw(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values)).data();
}

/// One buffer of ones for each member, on the heap, so that late access is seen.
struct Data {
  explicit Data(int members)
      : in(static_cast<std::size_t>(members), std::vector<float>(kCount, 1.0F)), out(in) {}
  std::unique_ptr<Work> allreduce(NetWorld& world, int member) {
    const auto i = static_cast<std::size_t>(member);
    return world.group(member).allreduce({{.in = raw(in[i]), .out = raw(out[i]), .count = kCount}},
                                         kSum);
  }
  std::vector<std::vector<float>> in;
  std::vector<std::vector<float>> out;
};

/// Members either succeed with the right data, fail with kPeerFailed, or wait.
void expect_no_lies(const std::vector<Status>& outcome, const Data& data, const std::string& what) {
  for (std::size_t i = 0; i < outcome.size(); ++i) {
    if (outcome[i].ok()) {
      EXPECT_EQ(data.out[i], std::vector<float>(kCount, static_cast<float>(outcome.size())))
          << what << ", member " << i;
    } else {
      EXPECT_TRUE(outcome[i].code() == ErrorCode::kPeerFailed ||
                  outcome[i].code() == ErrorCode::kTimeout)
          << what << ", member " << i << ": " << outcome[i].message();
      if (outcome[i].code() == ErrorCode::kPeerFailed) {
        EXPECT_EQ(outcome[i].rank() % 3, 1) << what << ": a world rank of a member";
      }
    }
  }
}

TEST(NetFault, a_cut_link_fails_both_ends_at_any_message) {
  for (const int size : {2, 3, 5, 17}) {
    for (std::uint64_t message = 0; message < 12; ++message) {
      const std::string what =
          std::to_string(size) + " members, message " + std::to_string(message);
      NetWorld world(size,
                     FaultPlan(message + 1)
                         .fragment(200)
                         .capacity(2000)
                         .cut(world_rank_of(0), world_rank_of(1), message),
                     {.chunk_bytes = 512});
      Data data(size);
      const auto outcome = world.run([&](int member) { return data.allreduce(world, member); });
      EXPECT_TRUE(world.hub.unfired_faults().empty()) << what;
      EXPECT_EQ(outcome[0].code(), ErrorCode::kPeerFailed) << what;
      EXPECT_EQ(outcome[1].code(), ErrorCode::kPeerFailed) << what;
      expect_no_lies(outcome, data, what);
      // The group is over, and says so at once.
      const auto again = world.run([&](int member) { return data.allreduce(world, member); });
      EXPECT_EQ(again[0].code(), ErrorCode::kPeerFailed) << what;
    }
  }
}

TEST(NetFault, one_cut_link_ends_the_operation_on_every_member_of_the_row) {
  // The failed ends drop their Works, which closes their channels, which fails those who wait.
  for (const int size : {2, 3, 4, 16, 17}) {
    const auto last = static_cast<int>(grid_width(static_cast<std::size_t>(size))) - 1;
    NetWorld world(
        size, FaultPlan(5).cut(world_rank_of(last), world_rank_of(0), 2), {.chunk_bytes = 512});
    Data data(size);
    const auto outcome = world.run([&](int member) { return data.allreduce(world, member); });
    EXPECT_TRUE(world.hub.unfired_faults().empty());
    for (std::size_t i = 0; i < outcome.size(); ++i) {
      const std::string what = std::to_string(size) + " members, member " + std::to_string(i);
      if (i <= static_cast<std::size_t>(last)) {
        EXPECT_EQ(outcome[i].code(), ErrorCode::kPeerFailed) << what;
      } else {  // It may wait for a channel that is not open yet: the engine ends that.
        EXPECT_FALSE(outcome[i].ok()) << what;
      }
    }
  }
}

TEST(NetFault, a_stalled_link_leaves_members_waiting_with_nothing_wrong) {
  for (const int size : {2, 3, 17}) {
    NetWorld world(size,
                   FaultPlan(2).fragment(128).stall(world_rank_of(0), world_rank_of(1), 1),
                   {.chunk_bytes = 512});
    Data data(size);
    const auto outcome = world.run([&](int member) { return data.allreduce(world, member); });
    EXPECT_TRUE(world.hub.unfired_faults().empty());
    EXPECT_EQ(outcome[1].code(), ErrorCode::kTimeout) << "left waiting";
    expect_no_lies(outcome, data, std::to_string(size));
  }
}

/// Starts `start` on all members, takes `turns` turns, drops one member's Work and its memory, and
/// lets the others go on.
void drop_midway(int size,
                 int turns,
                 const std::function<std::unique_ptr<Work>(NetWorld&, Data&, int)>& start) {
  const std::string what = std::to_string(size) + " members after " + std::to_string(turns);
  NetWorld world(size,
                 FaultPlan(static_cast<unsigned>(turns) + 1).fragment(128).capacity(256),
                 {.chunk_bytes = 512});
  auto dropped = std::make_unique<Data>(size);
  Data data(size);
  const int victim = size / 2;
  std::vector<std::unique_ptr<Work>> works;
  for (int i = 0; i < size; ++i) {
    works.push_back(start(world, i == victim ? *dropped : data, i));
  }
  for (int turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      ASSERT_TRUE(world.transports[i]->poll().ok());
      if (works[i] != nullptr) {
        const auto progress = works[i]->advance();
        ASSERT_TRUE(progress.ok()) << what << ": " << progress.status().message();
        if (progress.value() == Progress::kDone) {
          works[i].reset();
        }
      }
    }
  }
  const auto v = static_cast<std::size_t>(victim);
  ASSERT_NE(works[v], nullptr) << what << ": finished too early for this test";
  works[v].reset();
  dropped.reset();  // AddressSanitizer objects if anything still touches it.
  EXPECT_EQ(start(world, data, victim)->advance().status().code(), ErrorCode::kShutDown) << what;
  std::vector<std::unique_ptr<Work>> rest = std::move(works);
  const auto outcome =
      world.run([&](int member) { return std::move(rest[static_cast<std::size_t>(member)]); });
  bool heard = false;
  const std::size_t width = grid_width(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < outcome.size(); ++i) {
    const Status& status = outcome[i];
    // Another row may not have a channel to the victim's yet: the engine ends that wait.
    const bool may_wait = i / width != v / width && status.code() == ErrorCode::kTimeout;
    EXPECT_TRUE(status.ok() || status.code() == ErrorCode::kPeerFailed || may_wait)
        << what << status.message();
    heard = heard || status.code() == ErrorCode::kPeerFailed;
  }
  EXPECT_TRUE(heard) << what;
}

TEST(NetFault, a_work_dropped_midway_lets_go_of_memory_and_fails_the_others) {
  for (const int size : {2, 3, 5, 17}) {
    for (const int turns : {1, 2, 3, 4}) {
      drop_midway(size, turns, [](NetWorld& world, Data& data, int member) {
        return data.allreduce(world, member);
      });
      drop_midway(size, turns, [](NetWorld& world, Data& data, int member) {
        const auto i = static_cast<std::size_t>(member);
        const auto n = static_cast<std::size_t>(world.size());
        return world.group(member).alltoall(raw(data.in[i]),
                                            std::vector<std::size_t>(n, 4 * kCount / n),
                                            raw(data.out[i]),
                                            std::vector<std::size_t>(n, 4 * kCount / n));
      });
    }
  }
}

TEST(NetFault, a_work_dropped_before_it_began_ends_its_group) {
  // No channel is open yet, so the peer does not hear of it here: it waits, and gets no data.
  NetWorld world(2, FaultPlan(1), {.chunk_bytes = 512});
  Data data(2);
  {
    const auto dropped = data.allreduce(world, 0);
  }
  const auto outcome = world.run([&](int member) { return data.allreduce(world, member); });
  EXPECT_EQ(outcome[0].code(), ErrorCode::kShutDown);
  EXPECT_EQ(outcome[1].code(), ErrorCode::kTimeout) << "left waiting";
}

TEST(NetFault, groups_may_go_before_their_works) {
  auto world = std::make_unique<NetWorld>(2);
  Data data(2);
  auto work = data.allreduce(*world, 0);
  ASSERT_TRUE(work->advance().ok());
  world->groups.clear();
  ASSERT_TRUE(work->advance().ok());
  work.reset();
  world.reset();
}

TEST(NetFault, another_lane_is_not_touched_by_a_broken_group) {
  LoopbackHub hub;
  std::vector<NetMember> members;
  std::vector<std::unique_ptr<Transport>> transports;
  for (int i = 0; i < 2; ++i) {
    transports.push_back(hub.make_transport(world_rank_of(i)));
    members.push_back({.world_rank = world_rank_of(i), .handle = transports.back()->handle()});
  }
  std::vector<std::vector<std::unique_ptr<Group>>> lanes(2);
  for (std::uint32_t lane = 0; lane < 2; ++lane) {
    for (int i = 0; i < 2; ++i) {
      lanes[lane].push_back(
          make_net_group(*transports[static_cast<std::size_t>(i)], members, i, 0, lane, {}));
    }
  }
  {
    const auto abandoned = lanes[0][0]->barrier();
  }
  std::vector<std::unique_ptr<Work>> works;
  works.push_back(lanes[1][0]->barrier());
  works.push_back(lanes[1][1]->barrier());
  for (int turn = 0; turn < 100; ++turn) {
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(transports[i]->poll().ok());
      if (works[i] != nullptr) {
        const auto progress = works[i]->advance();
        ASSERT_TRUE(progress.ok());
        if (progress.value() == Progress::kDone) {
          works[i].reset();
        }
      }
    }
  }
  EXPECT_EQ(works[0], nullptr);
  EXPECT_EQ(works[1], nullptr);
  EXPECT_EQ(lanes[0][0]->barrier()->advance().status().code(), ErrorCode::kShutDown);
}

}  // namespace
}  // namespace lightcc::net_test::net_fault_test
