// What joining costs one rank, by the number of ranks: counts, which say more than times.
#include "lightcc/engine/membership.hpp"

#include <dirent.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/control_tree.hpp"
#include "lightcc/engine/liveness.hpp"

#include "doubles/hash_store.hpp"

namespace lightcc::membership_test {
namespace {

// Parent and children, and the leader.
constexpr std::size_t kMostWatched = kTreeArity + 2;

std::size_t open_descriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), &::closedir);
  std::size_t count = 0;
  while (folder != nullptr && ::readdir(folder.get()) != nullptr) {
    ++count;
  }
  return count;
}

/// Joins `size` ranks of one host and returns their memberships, by rank.
std::vector<Membership> join(int size) {
  const std::shared_ptr<Store> store = make_hash_store();
  std::vector<std::optional<Membership>> joined(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      WorldOptions options;
      options.epoch = {.rank = rank,
                       .size = size,
                       .store = store,
                       .key_prefix = "test",
                       .secret = "secret",
                       .rendezvous_address = "127.0.0.1:1"};
      const TimePoint deadline = Clock::system().now() + std::chrono::seconds(60);
      auto round = store->join("test", Status(ErrorCode::kPeerFailed, "gone"), deadline);
      ASSERT_TRUE(round.ok());
      const Joining joining{*store, **round, rank, size, deadline, "a limit"};
      auto world = join_world(options, &joining);
      ASSERT_TRUE(world.ok()) << "rank " << rank << ": " << world.status().message();
      EXPECT_TRUE((*round)->leave(false, deadline).ok());
      joined[static_cast<std::size_t>(rank)] = std::move(world).value();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<Membership> all;
  for (auto& world : joined) {
    all.push_back(std::move(world).value());
  }
  return all;
}

TEST(Membership, no_rank_has_more_descriptors_on_a_larger_host) {
  std::vector<double> of_each;
  for (const int size : {20, 100}) {
    const std::size_t before = open_descriptors();
    const std::vector<Membership> all = join(size);
    of_each.push_back(static_cast<double>(open_descriptors() - before) / size);
    for (const Membership& world : all) {
      EXPECT_LE(world.host.watched.size(), kMostWatched) << "rank " << world.topology.rank;
      EXPECT_EQ(world.host.segment.fd(), -1);
    }
  }
  EXPECT_LT(of_each[0], 8);
  EXPECT_LT(of_each[1], of_each[0] + 1);
}

TEST(Membership, all_ranks_of_a_host_share_its_memory_and_wake_each_other) {
  const std::vector<Membership> all = join(20);
  for (const Membership& world : all) {
    EXPECT_EQ(world.host.ranks.size(), 20U);
    EXPECT_EQ(world.children.size(), world.topology.rank == 0 ? 19U : 0U);
    const auto own = static_cast<std::size_t>(world.host.index);
    world.host.words[own].sleeping.store(kWaiting);
  }
  for (std::size_t position = 0; position < 20; ++position) {
    const std::size_t ringer = (position + 7) % 20;
    all[ringer].host.doorbell(position).ring();
    EXPECT_EQ(all[position].host.words[position].sleeping.load(), kAwake);
    std::byte byte{};
    EXPECT_EQ(::recv(all[position].host.mail.fd(), &byte, 1, MSG_DONTWAIT), 1) << position;
  }
}

// Who sees the end of a process: its neighbours in the tree, and of the leader's all ranks.
TEST(Membership, the_end_of_a_rank_is_seen_by_its_neighbours_and_of_the_leader_by_all) {
  for (const std::size_t gone : {0U, 1U, 15U}) {
    std::vector<Membership> all = join(20);
    all[gone] = Membership();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const bool is_neighbour = rank > 0 && ((rank - 1) / kTreeArity == gone);
      const bool is_parent = gone > 0 && (gone - 1) / kTreeArity == rank;
      if (rank == gone) {
        continue;
      }
      auto waker = Waker::make(all[rank].host.words[rank], all[rank].host.bell.get());
      ASSERT_TRUE(waker.ok());
      const auto liveness = Liveness::start(all[rank], *waker, 0);
      ASSERT_TRUE(liveness.ok()) << liveness.status().message();
      int seen = -1;
      for (const std::uint64_t index : waker->ready()) {
        ASSERT_TRUE(liveness->has_ended(index));
        seen = liveness->death_of(index).rank();
      }
      const bool sees_it = is_neighbour || is_parent || gone == 0;
      EXPECT_EQ(seen, sees_it ? static_cast<int>(gone) : -1) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace lightcc::membership_test
