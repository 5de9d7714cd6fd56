// What joining costs one rank, by the number of ranks: counts, which say more than times.
#include "lightcc/engine/membership.hpp"

#include <dirent.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/control_tree.hpp"
#include "lightcc/engine/liveness.hpp"

#include "doubles/local_store.hpp"
#include "doubles/threads.hpp"

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

/// Counts what one rank asks of the store.
class CountedRound final : public RendezvousRound {
 public:
  CountedRound(RendezvousRound& round, int& messages) : round_(round), messages_(messages) {}
  Status set(const std::string& key, std::vector<std::byte> value, TimePoint deadline) override {
    ++messages_;
    return round_.set(key, std::move(value), deadline);
  }
  Result<std::vector<std::byte>> get(const std::string& key, TimePoint deadline) override {
    ++messages_;
    return round_.get(key, deadline);
  }
  Result<std::vector<std::byte>> gather(const std::string& key,
                                        std::uint32_t index,
                                        std::uint32_t count,
                                        std::vector<std::byte> share,
                                        TimePoint deadline) override {
    ++messages_;
    return round_.gather(key, index, count, std::move(share), deadline);
  }
  int event_fd() const override { return round_.event_fd(); }
  Status failure(TimePoint deadline) override { return round_.failure(deadline); }
  Status fail(const Status& why, TimePoint deadline) override { return round_.fail(why, deadline); }
  Status leave(bool last, TimePoint deadline) override { return round_.leave(last, deadline); }

 private:
  RendezvousRound& round_;
  int& messages_;
};

/// Joins `size` ranks of one host and returns their memberships, by rank. `most_messages`: that one
/// of them sent to the store.
std::vector<Membership> join(int size, int* most_messages = nullptr) {
  std::vector<int> messages(static_cast<std::size_t>(size), 0);
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::optional<Membership>> joined(static_cast<std::size_t>(size));
  run_on_threads(size, [&](int rank) {
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
    CountedRound counted(**round, messages[static_cast<std::size_t>(rank)]);
    const Joining joining{*store, counted, rank, size, deadline, "a limit"};
    auto world = join_world(options, &joining);
    ASSERT_TRUE(world.ok()) << "rank " << rank << ": " << world.status().message();
    EXPECT_TRUE((*round)->leave(false, deadline).ok());
    joined[static_cast<std::size_t>(rank)] = std::move(world).value();
  });
  if (most_messages != nullptr) {
    *most_messages = *std::ranges::max_element(messages);
  }
  std::vector<Membership> all;
  for (auto& world : joined) {
    all.push_back(std::move(world).value());
  }
  return all;
}

TEST(Membership, no_rank_sends_the_store_more_messages_in_a_larger_world) {
  for (const int size : {2, 20, 60}) {
    int most = 0;
    (void)join(size, &most);
    EXPECT_EQ(most, 2) << size << " ranks";  // Cards, and leaders.
  }
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
