// Broken links and abandoned Works of a grid: typed errors or waiting, never wrong data, never
// touched memory. Ranks take random turns in one thread, so that every seed is another
// interleaving.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

#include "collectives/grid/grid_testing.hpp"
#include "doubles/fault_plan.hpp"

namespace lightcc::grid_fault_test {
namespace {

using testing::GridShape;
using testing::GridWorld;

constexpr std::size_t kCount = 3000;  // 24 chunks of float32.
/// Turns without any movement after which nothing will move any more.
constexpr int kStuckTurns = 300;

enum class Kind : std::uint8_t { kAllreduce, kReduceScatter, kAllgather, kBroadcast };
constexpr Kind kKinds[] = {
    Kind::kAllreduce, Kind::kReduceScatter, Kind::kAllgather, Kind::kBroadcast};

/// Every element is 1, and of every rank; so only a sum changes it.
struct Ranks {
  explicit Ranks(const GridShape& shape, const FaultPlan& plan, Kind kind_in = Kind::kAllreduce)
      : world(shape, plan), random(plan.seed()), kind(kind_in) {
    for (int rank = 0; rank < shape.size(); ++rank) {
      transports.push_back(world.hub.make_transport(static_cast<std::uint32_t>(rank)));
      groups.push_back(world.make_group(rank, *transports.back()));
      data.emplace_back(kCount, 1.0F);
    }
  }

  void start() {
    outcome.assign(groups.size(), Status(ErrorCode::kTimeout, "left waiting"));
    works.clear();
    for (std::size_t rank = 0; rank < groups.size(); ++rank) {
      data[rank].assign(kCount, 1.0F);
      works.push_back(start_on(rank));
    }
  }
  std::unique_ptr<Work> start_on(std::size_t rank) {
    auto* const raw = std::as_writable_bytes(std::span(data[rank])).data();
    Group& group = *groups[rank];
    const std::size_t part = kCount / groups.size();
    switch (kind) {
      case Kind::kAllreduce:
        return group.allreduce({{.in = raw, .out = raw, .count = kCount}}, {});
      case Kind::kReduceScatter:
        parts.resize(groups.size(), std::vector<float>(part));
        return group.reduce_scatter(raw,
                                    std::as_writable_bytes(std::span(parts[rank])).data(),
                                    std::vector<std::size_t>(groups.size(), part),
                                    {});
      case Kind::kAllgather:
        return group.allgather(
            raw + rank * part * 4, raw, std::vector<std::size_t>(groups.size(), part * 4));
      case Kind::kBroadcast:
        return group.broadcast(raw, kCount * 4, 0);
    }
    return nullptr;
  }
  /// One turn of a random rank. True when anything moved.
  bool turn() {
    const std::size_t rank = random() % works.size();
    const bool moved = transports[rank]->poll().value();
    if (works[rank] == nullptr) {
      return moved;
    }
    const auto progress = works[rank]->advance();
    if (!progress.ok() || *progress == Progress::kDone) {
      outcome[rank] = progress.status();
      works[rank].reset();
      return true;
    }
    return moved || *progress == Progress::kMoved;
  }
  /// Until all are over or nothing moves.
  void run() {
    const int limit = kStuckTurns * static_cast<int>(works.size());
    for (int quiet = 0; quiet < limit && is_any_left(); ++quiet) {
      quiet = turn() ? 0 : quiet;
    }
  }
  bool is_any_left() const {
    return std::ranges::any_of(works, [](const auto& work) { return work != nullptr; });
  }
  void expect_no_lies(const std::string& what) const {
    for (std::size_t rank = 0; rank < outcome.size(); ++rank) {
      if (outcome[rank].ok()) {
        const auto sum = static_cast<float>(outcome.size());
        const float expected = kind == Kind::kAllreduce ? sum : 1.0F;
        EXPECT_EQ(data[rank], std::vector<float>(kCount, expected)) << what << ", rank " << rank;
        if (kind == Kind::kReduceScatter) {
          EXPECT_EQ(parts[rank], std::vector<float>(parts[rank].size(), sum)) << what;
        }
      } else {
        EXPECT_TRUE(outcome[rank].code() == ErrorCode::kPeerFailed ||
                    outcome[rank].code() == ErrorCode::kTimeout)
            << what << ", rank " << rank << ": " << outcome[rank].message();
      }
    }
  }

  GridWorld world;
  std::mt19937_64 random;
  Kind kind;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::vector<float>> data;
  std::vector<std::vector<float>> parts;
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<std::unique_ptr<Work>> works;
  std::vector<Status> outcome;
};

TEST(GridFault, random_turns_on_bad_links_end_with_the_right_sums) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const GridShape& shape : {GridShape{.blocks = 2, .members = 2},
                                   GridShape{.blocks = 2, .members = 3},
                                   GridShape{.blocks = 3, .members = 2, .exchanges = 1}}) {
      Ranks ranks(shape, FaultPlan(seed).delay(4).fragment(200).capacity(700));
      ranks.start();
      ranks.run();
      for (std::size_t rank = 0; rank < ranks.outcome.size(); ++rank) {
        EXPECT_TRUE(ranks.outcome[rank].ok()) << "seed " << seed << ", rank " << rank;
      }
      ranks.expect_no_lies("seed " + std::to_string(seed));
    }
  }
}

TEST(GridFault, a_cut_link_fails_both_ends_at_any_message_and_nobody_lies) {
  for (std::uint64_t message = 0; message < 10; ++message) {
    const std::string what = "message " + std::to_string(message);
    Ranks ranks({.blocks = 2, .members = 2}, FaultPlan(message + 1).cut(0, 2, message));
    ranks.start();
    ranks.run();
    EXPECT_TRUE(ranks.world.hub.unfired_faults().empty()) << what;
    EXPECT_EQ(ranks.outcome[0].code(), ErrorCode::kPeerFailed) << what;
    EXPECT_EQ(ranks.outcome[2].code(), ErrorCode::kPeerFailed) << what;
    EXPECT_EQ(ranks.outcome[2].rank(), 0) << what;
    ranks.expect_no_lies(what);
    // The levels are over, and say so at once; the flat group is not affected.
    ranks.works.clear();
    ranks.start();
    EXPECT_EQ(ranks.works[0]->advance().status().code(), ErrorCode::kPeerFailed) << what;
  }
}

TEST(GridFault, a_rank_that_drops_its_work_fails_its_peers_and_no_memory_is_touched_any_more) {
  for (const int turns : {0, 20, 60, 150, 400}) {
    const std::string what = std::to_string(turns) + " turns";
    Ranks ranks({.blocks = 3, .members = 2}, FaultPlan(9).delay(2));
    ranks.start();
    for (int i = 0; i < turns; ++i) {
      ranks.turn();
    }
    ASSERT_NE(ranks.works[3], nullptr) << what;
    ranks.works[3].reset();
    ranks.data[3].assign(kCount, -1.0F);
    ranks.run();
    EXPECT_EQ(ranks.data[3], std::vector<float>(kCount, -1.0F)) << what;
    EXPECT_EQ(ranks.outcome[3].code(), ErrorCode::kTimeout);
    ranks.expect_no_lies(what);
    if (turns >= 150) {  // Its channels were open.
      EXPECT_EQ(ranks.outcome[1].code(), ErrorCode::kPeerFailed) << what;
      EXPECT_EQ(ranks.outcome[5].code(), ErrorCode::kPeerFailed) << what;
    }
    ranks.works.clear();
    ranks.start();
    EXPECT_EQ(ranks.works[3]->advance().status().code(), ErrorCode::kShutDown) << what;
  }
}

TEST(GridFault, every_operation_ends_both_levels_for_all_of_them) {
  for (const Kind kind : kKinds) {
    for (std::uint64_t message = 0; message < 3; ++message) {
      const std::string what =
          "kind " + std::to_string(static_cast<int>(kind)) + ", message " + std::to_string(message);
      Ranks ranks({.blocks = 2, .members = 2}, FaultPlan(message + 1).cut(0, 2, message), kind);
      ranks.start();
      ranks.run();
      EXPECT_TRUE(ranks.world.hub.unfired_faults().empty()) << what;
      EXPECT_EQ(ranks.outcome[2].code(), ErrorCode::kPeerFailed) << what;
      ranks.expect_no_lies(what);
      ranks.works.clear();
      for (const Kind later : kKinds) {
        ranks.kind = later;
        ranks.start();
        EXPECT_EQ(ranks.works[2]->advance().status().code(), ErrorCode::kPeerFailed) << what;
      }
    }
    Ranks ranks({.blocks = 2, .members = 2}, FaultPlan(3).delay(2), kind);
    ranks.start();
    for (int i = 0; i < 30; ++i) {
      ranks.turn();
    }
    ASSERT_NE(ranks.works[0], nullptr);
    ranks.works[0].reset();
    ranks.data[0].assign(kCount, -1.0F);
    ranks.run();
    EXPECT_EQ(ranks.data[0], std::vector<float>(kCount, -1.0F));
    ranks.expect_no_lies("dropped");
    for (const Kind later : kKinds) {
      ranks.kind = later;
      EXPECT_EQ(ranks.start_on(0)->advance().status().code(), ErrorCode::kShutDown);
    }
  }
}

TEST(GridFault, a_stalled_link_leaves_ranks_waiting_with_nothing_wrong) {
  Ranks ranks({.blocks = 2, .members = 2}, FaultPlan(5).stall(2, 0, 3));
  ranks.start();
  ranks.run();
  EXPECT_TRUE(ranks.world.hub.unfired_faults().empty());
  EXPECT_EQ(ranks.outcome[0].code(), ErrorCode::kTimeout);
  ranks.expect_no_lies("stalled");
}

}  // namespace
}  // namespace lightcc::grid_fault_test
