#include "sync/doorbells.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace harp::doorbells_test {
namespace {

std::vector<std::size_t> collected(Doorbells& bells) {
  std::vector<std::size_t> rung;
  bells.collect([&](std::size_t bell) { rung.push_back(bell); });
  return rung;
}

TEST(Doorbells, nothing_was_rung_at_first) {
  Doorbells bells;
  EXPECT_FALSE(bells.any());
  EXPECT_FALSE(bells.collect([](std::size_t) { FAIL(); }));
}

TEST(Doorbells, every_bell_is_collected_once_however_often_it_was_rung) {
  Doorbells bells;
  const std::vector<std::size_t> rung{0, 1, 63, 64, 2048, Doorbells::kCount - 1};
  for (const std::size_t bell : rung) {
    bells.ring(bell);
    bells.ring(bell);
  }
  EXPECT_TRUE(bells.any());
  EXPECT_EQ(collected(bells), rung);
  EXPECT_FALSE(bells.any());
  EXPECT_EQ(collected(bells), std::vector<std::size_t>{});
  bells.ring(63);
  EXPECT_EQ(collected(bells), std::vector<std::size_t>{63});
}

TEST(Doorbells, a_bell_that_is_rung_while_it_is_collected_rings_again) {
  Doorbells bells;
  bells.ring(5);
  int visits = 0;
  bells.collect([&](std::size_t bell) {
    ++visits;
    bells.ring(bell);
  });
  EXPECT_EQ(visits, 1);
  EXPECT_TRUE(bells.any());
  EXPECT_EQ(collected(bells), std::vector<std::size_t>{5});
}

TEST(Doorbells, what_many_threads_wrote_before_they_rang_is_seen_and_no_ring_is_lost) {
  // Each thread posts numbers to mailboxes of its own and rings; the collector looks only at
  // mailboxes whose bell rang. Were one ring lost, its number would never be found.
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kBells = 32;  // Each thread has so many, and threads share words.
  constexpr std::uint32_t kRounds = 5000;
  Doorbells bells;
  std::array<std::atomic<std::uint32_t>, kThreads * kBells> posted{};
  std::array<std::atomic<std::uint32_t>, kThreads * kBells> taken{};
  std::atomic<bool> gave_up{false};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint32_t round = 1; round <= kRounds; ++round) {
        const std::size_t bell = (round % kBells) * kThreads + thread;
        while (taken[bell].load() != posted[bell].load() && !gave_up.load()) {
          std::this_thread::yield();  // One that is lost here would never be taken.
        }
        posted[bell].store(round, std::memory_order_relaxed);
        bells.ring(bell);
      }
    });
  }
  std::uint64_t found = 0;
  std::uint64_t idle = 0;
  constexpr std::uint64_t kPatience = 50'000'000;
  while (found < std::uint64_t{kThreads} * kRounds && idle < kPatience) {
    const bool any = bells.collect([&](std::size_t bell) {
      const std::uint32_t value = posted[bell].load(std::memory_order_relaxed);
      found += value != taken[bell].load() ? 1 : 0;
      taken[bell].store(value);
    });
    idle = any ? 0 : idle + 1;
    if (!any) {
      std::this_thread::yield();
    }
  }
  gave_up.store(true);
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(found, std::uint64_t{kThreads} * kRounds);
  EXPECT_FALSE(bells.any() && bells.collect([](std::size_t) {}) && bells.any());
}

}  // namespace
}  // namespace harp::doorbells_test
