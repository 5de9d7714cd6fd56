#include "sync/baton.hpp"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace harp::baton_test {
namespace {

TEST(Baton, has_one_holder) {
  Baton baton;
  EXPECT_TRUE(baton.try_take());
  EXPECT_FALSE(baton.try_take());
  baton.give_back();
  EXPECT_TRUE(baton.try_take());
  baton.give_back();
  baton.take();
  EXPECT_FALSE(baton.try_take());
  EXPECT_FALSE(baton.is_wanted()) << "who has it does not want it any more";
  baton.give_back();
}

TEST(Baton, nobody_takes_it_between_a_holder_and_who_waits_for_it) {
  Baton baton;
  ASSERT_TRUE(baton.try_take());
  std::atomic<bool> has_it{false};
  std::atomic<bool> may_end{false};
  std::thread waiter([&] {
    baton.take();
    has_it.store(true);
    while (!may_end.load()) {
      std::this_thread::yield();
    }
    baton.give_back();
  });
  while (!baton.is_wanted()) {
    std::this_thread::yield();
  }
  baton.give_back();
  // From here on the waiter has it or is about to: a third party never gets it.
  while (!has_it.load()) {
    EXPECT_FALSE(baton.try_take());
  }
  may_end.store(true);
  waiter.join();
  EXPECT_TRUE(baton.try_take());
}

TEST(Baton, threads_that_take_and_try_never_hold_it_together) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 5000;
  Baton baton;
  std::uint64_t guarded = 0;  // Not atomic: what the baton guards.
  std::atomic<std::uint64_t> holds{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < kRounds; ++round) {
        if (thread % 2 == 0) {
          baton.take();
        } else if (!baton.try_take()) {
          std::this_thread::yield();
          continue;
        }
        ++guarded;
        holds.fetch_add(1);
        baton.give_back();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(guarded, holds.load());
  EXPECT_GE(guarded, std::uint64_t{kThreads / 2} * kRounds);
}

TEST(Baton, take_gets_in_while_another_thread_takes_it_again_and_again) {
  Baton baton;
  std::atomic<bool> is_over{false};
  std::atomic<std::uint64_t> turns{0};
  std::thread spinner([&] {
    while (!is_over.load()) {
      if (baton.try_take()) {
        turns.fetch_add(1);
        baton.give_back();
      }
    }
  });
  while (turns.load() == 0) {
    std::this_thread::yield();
  }
  for (int i = 0; i < 1000; ++i) {
    baton.take();
    const std::uint64_t before = turns.load();
    EXPECT_FALSE(baton.try_take());
    EXPECT_EQ(turns.load(), before);
    baton.give_back();
  }
  is_over.store(true);
  spinner.join();
}

}  // namespace
}  // namespace harp::baton_test
