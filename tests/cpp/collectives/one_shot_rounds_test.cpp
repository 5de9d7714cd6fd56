#include "lightcc/collectives/one_shot_rounds.hpp"

#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "doubles/threads.hpp"

namespace lightcc::one_shot_rounds_test {
namespace {

using Entry = OneShotRounds::Entry;
using View = OneShotRounds::View;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The ranks of a host, in one process.
class Host {
 public:
  explicit Host(std::size_t members)
      : storage_(OneShotRounds::bytes(members) / sizeof(Block)), members_(members) {
    for (std::size_t index = 0; index < members; ++index) {
      ranks_.emplace_back(std::as_writable_bytes(std::span(storage_)), members, index);
    }
  }
  OneShotRounds& operator[](std::size_t index) { return ranks_[index]; }
  Entry enter(std::size_t index, const std::string& what) {
    return ranks_[index].enter(as_bytes(what), as_bytes(what + " of " + std::to_string(index)));
  }
  // The input of `member`, as `index` reads it.
  std::string input(std::size_t index, std::size_t member, std::size_t size) {
    const auto all = ranks_[index].inputs();
    const std::size_t stride = all.size() / members_;
    EXPECT_EQ(stride, ranks_[index].max_input());
    return {reinterpret_cast<const char*>(all.data() + member * stride), size};
  }
  // All enter and find the inputs of all.
  void meet(const std::string& what) {
    for (std::size_t index = 0; index < members_; ++index) {
      ASSERT_EQ(enter(index, what), Entry::kEntered);
    }
    for (std::size_t index = 0; index < members_; ++index) {
      ASSERT_EQ(ranks_[index].look(), View::kMet);
      for (std::size_t member = 0; member < members_; ++member) {
        const std::string expected = what + " of " + std::to_string(member);
        EXPECT_EQ(input(index, member, expected.size()), expected);
      }
      ranks_[index].leave();
    }
  }

 private:
  struct alignas(128) Block {
    std::array<std::byte, 128> bytes{};
  };
  std::vector<Block> storage_;
  std::size_t members_;
  std::vector<OneShotRounds> ranks_;
};

TEST(OneShotRounds, all_read_the_inputs_of_all) {
  for (const std::size_t members : {2U, 3U, 16U}) {
    Host host(members);
    for (int round = 0; round < 5; ++round) {
      host.meet("round " + std::to_string(round));
    }
  }
}

TEST(OneShotRounds, inputs_of_all_sizes_fit) {
  for (std::size_t members = 2; members <= OneShotRounds::kMaxMembers; ++members) {
    Host host(members);
    EXPECT_GE(host[0].max_input(), 4096U);
    EXPECT_LE(host[0].max_input() * members, OneShotRounds::kMaxTotal);
    const std::string identity(OneShotRounds::kMaxIdentity, 'i');
    for (std::size_t index = 0; index < members; ++index) {
      const std::string input(host[index].max_input(), static_cast<char>('a' + index));
      ASSERT_EQ(host[index].enter(as_bytes(identity), as_bytes(input)), Entry::kEntered);
    }
    for (std::size_t index = 0; index < members; ++index) {
      ASSERT_EQ(host[index].look(), View::kMet);
      const std::string last = host.input(index, members - 1, host[0].max_input());
      EXPECT_EQ(last, std::string(host[0].max_input(), static_cast<char>('a' + members - 1)));
      host[index].leave();
    }
  }
}

TEST(OneShotRounds, ranks_that_bring_different_things_do_not_meet) {
  Host host(3);
  host.enter(0, "loss");
  host.enter(1, "loss");
  EXPECT_EQ(host[0].look(), View::kWaiting);
  host.enter(2, "lost");
  for (std::size_t index = 0; index < 3; ++index) {
    EXPECT_EQ(host[index].look(), View::kApart);
    host[index].leave();
  }
  host.meet("next");
  host.enter(0, "short");
  host.enter(1, "shorter");
  host.enter(2, "short");
  for (std::size_t index = 0; index < 3; ++index) {
    EXPECT_EQ(host[index].look(), View::kApart);
    host[index].leave();
  }
}

TEST(OneShotRounds, who_gives_up_gives_up_for_all) {
  Host host(3);
  host.enter(0, "early");
  host.enter(1, "early");
  EXPECT_TRUE(host[0].give_up());
  host[0].leave();
  EXPECT_EQ(host[1].look(), View::kGivenUp);
  EXPECT_TRUE(host[1].give_up());
  host[1].leave();
  EXPECT_EQ(host.enter(2, "early"), Entry::kGivenUp);
  host.meet("together");
}

TEST(OneShotRounds, nobody_gives_up_what_all_have_entered) {
  Host host(2);
  host.enter(0, "x");
  host.enter(1, "x");
  EXPECT_FALSE(host[0].give_up());
  EXPECT_EQ(host[0].look(), View::kMet);
  EXPECT_EQ(host[1].look(), View::kMet);
}

TEST(OneShotRounds, a_rank_that_does_not_come_soon_holds_up_nobody) {
  Host host(2);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(host.enter(0, "alone"), Entry::kEntered);
    EXPECT_TRUE(host[0].give_up());
    host[0].leave();
  }
  for (int call = 0; call < 10; ++call) {
    EXPECT_EQ(host.enter(0, "alone"), Entry::kClosed);
  }
  EXPECT_EQ(host.enter(1, "late"), Entry::kGivenUp);
  host.meet("again");
}

TEST(OneShotRounds, a_rank_that_is_behind_catches_up_where_another_waits) {
  Host host(2);
  host.enter(0, "1");
  EXPECT_TRUE(host[0].give_up());
  host[0].leave();
  ASSERT_EQ(host.enter(0, "2"), Entry::kEntered);
  ASSERT_EQ(host.enter(1, "2"), Entry::kEntered);
  for (std::size_t index = 0; index < 2; ++index) {
    EXPECT_EQ(host[index].look(), View::kMet);
    host[index].leave();
  }
  host.meet("3");
}

TEST(OneShotRounds, a_rank_may_join_others_only) {
  Host host(2);
  const std::string what = "x";
  EXPECT_EQ(host[0].enter(as_bytes(what), as_bytes(what), false), Entry::kClosed);
  ASSERT_EQ(host[1].enter(as_bytes(what), as_bytes(what)), Entry::kEntered);
  ASSERT_EQ(host[0].enter(as_bytes(what), as_bytes(what), false), Entry::kEntered);
  EXPECT_EQ(host[1].look(), View::kMet);
}

TEST(OneShotRounds, what_somebody_reads_is_not_overwritten) {
  Host host(2);
  host.enter(0, "read me");
  host.enter(1, "read me");
  ASSERT_EQ(host[0].look(), View::kMet);
  ASSERT_EQ(host[1].look(), View::kMet);
  host[0].leave();
  ASSERT_EQ(host.enter(0, "next"), Entry::kEntered);
  EXPECT_TRUE(host[0].give_up());
  host[0].leave();
  EXPECT_EQ(host.enter(0, "overwrites"), Entry::kClosed);
  EXPECT_EQ(host.input(1, 0, 12), "read me of 0");
  host[1].leave();
  EXPECT_EQ(host.enter(0, "overwrites"), Entry::kEntered);
}

// Ranks as threads. Each has its own mind about when to come and how long to wait. As in a world,
// an operation is over when all have met, or all have reported it.
class Crowd {
 public:
  Crowd(std::size_t members, unsigned seed, int operations)
      : host_(members),
        members_(members),
        seed_(seed),
        operations_(operations),
        reports_(static_cast<std::size_t>(operations)) {}

  /// Returns how many operations ranks met for.
  int run() {
    run_on_threads(members_, [this](std::size_t index) { play(index); });
    return met_;
  }

 private:
  static std::string input_of(int operation, std::size_t member) {
    const auto number = static_cast<std::size_t>(operation);
    return std::string(100 + number % 7, static_cast<char>('a' + (number * 31 + member) % 26));
  }

  void play(std::size_t index) {
    std::mt19937 random(seed_ * 31 + static_cast<unsigned>(index));
    for (int operation = 0; operation < operations_ && !failed_.load(); ++operation) {
      const bool reports_at_once = random() % 32 == 0;
      const int patience = static_cast<int>(random() % 200);
      if (reports_at_once || !meet(index, operation, patience)) {
        report(operation);
      }
    }
  }

  bool meet(std::size_t index, int operation, int patience) {
    OneShotRounds& rank = host_[index];
    const std::string same_name = "x";
    const std::string name = operation % 2 == 0 ? same_name : same_name + std::to_string(operation);
    if (rank.enter(as_bytes(name), as_bytes(input_of(operation, index))) != Entry::kEntered) {
      return false;
    }
    View view = rank.look();
    while (view == View::kWaiting) {
      ::sched_yield();
      view = --patience < 0 && rank.give_up() ? View::kGivenUp : rank.look();
    }
    if (view == View::kMet) {
      for (std::size_t member = 0; member < members_; ++member) {
        const std::string expected = input_of(operation, member);
        EXPECT_EQ(host_.input(index, member, expected.size()), expected) << "seed " << seed_;
      }
      met_ += index == 0 ? 1 : 0;
    }
    rank.leave();
    return view == View::kMet;
  }

  void report(int operation) {
    std::atomic<std::size_t>& reports = reports_[static_cast<std::size_t>(operation)];
    ++reports;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (reports.load() < members_ && !failed_.load()) {
      ::sched_yield();
      if (std::chrono::steady_clock::now() > deadline) {
        failed_ = true;
        ADD_FAILURE() << "some ranks met for operation " << operation
                      << ", but others reported it; "
                      << "seed " << seed_;
      }
    }
  }

  Host host_;
  std::size_t members_;
  unsigned seed_;
  int operations_;
  std::vector<std::atomic<std::size_t>> reports_;
  std::atomic<int> met_{0};
  std::atomic<bool> failed_{false};
};

TEST(OneShotRounds, all_ranks_meet_for_an_operation_or_none) {
  for (const std::size_t members : {2U, 3U, 5U}) {
    int met = 0;
    for (unsigned seed = 1; seed <= 3; ++seed) {
      met += Crowd(members, seed, 300).run();
    }
    EXPECT_GT(met, 50) << members << " members";
  }
}

}  // namespace
}  // namespace lightcc::one_shot_rounds_test
