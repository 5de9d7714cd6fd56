#include "sync/driver_lock.hpp"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace harp::driver_lock_test {
namespace {

TEST(DriverLock, has_one_holder) {
  DriverLock lock;
  EXPECT_TRUE(lock.try_take());
  EXPECT_FALSE(lock.try_take());
  lock.give_back();
  EXPECT_TRUE(lock.try_take());
  lock.give_back();
  lock.take();
  EXPECT_FALSE(lock.try_take());
  EXPECT_FALSE(lock.is_wanted()) << "who has it does not want it any more";
  lock.give_back();
}

TEST(DriverLock, nobody_takes_it_between_a_holder_and_who_waits_for_it) {
  DriverLock lock;
  ASSERT_TRUE(lock.try_take());
  std::atomic<bool> has_it{false};
  std::atomic<bool> may_end{false};
  std::thread waiter([&] {
    lock.take();
    has_it.store(true);
    while (!may_end.load()) {
      std::this_thread::yield();
    }
    lock.give_back();
  });
  while (!lock.is_wanted()) {
    std::this_thread::yield();
  }
  lock.give_back();
  // From here on the waiter has it or is about to: a third party never gets it.
  while (!has_it.load()) {
    EXPECT_FALSE(lock.try_take());
  }
  may_end.store(true);
  waiter.join();
  EXPECT_TRUE(lock.try_take());
}

TEST(DriverLock, threads_that_take_and_try_never_hold_it_together) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 5000;
  DriverLock lock;
  std::uint64_t guarded = 0;  // Not atomic: what the driver lock guards.
  std::atomic<std::uint64_t> holds{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < kRounds; ++round) {
        if (thread % 2 == 0) {
          lock.take();
        } else if (!lock.try_take()) {
          std::this_thread::yield();
          continue;
        }
        ++guarded;
        holds.fetch_add(1);
        lock.give_back();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(guarded, holds.load());
  EXPECT_GE(guarded, std::uint64_t{kThreads / 2} * kRounds);
}

TEST(DriverLock, take_gets_in_while_another_thread_takes_it_again_and_again) {
  DriverLock lock;
  std::atomic<bool> is_over{false};
  std::atomic<std::uint64_t> turns{0};
  std::thread spinner([&] {
    while (!is_over.load()) {
      if (lock.try_take()) {
        turns.fetch_add(1);
        lock.give_back();
      }
    }
  });
  while (turns.load() == 0) {
    std::this_thread::yield();
  }
  for (int i = 0; i < 1000; ++i) {
    lock.take();
    const std::uint64_t before = turns.load();
    EXPECT_FALSE(lock.try_take());
    EXPECT_EQ(turns.load(), before);
    lock.give_back();
  }
  is_over.store(true);
  spinner.join();
}

}  // namespace
}  // namespace harp::driver_lock_test
