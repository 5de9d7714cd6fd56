#include "sync/spsc_ring.hpp"

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace harp::spsc_ring_test {
namespace {

/// Where there is no room: false.
bool put(SpscRing<std::uint64_t>& ring, std::uint64_t value) {
  std::uint64_t* const slot = ring.back();
  if (slot == nullptr) {
    return false;
  }
  *slot = value;
  ring.push();
  return true;
}

TEST(SpscRing, is_empty_at_first) {
  SpscRing<std::uint64_t> ring(4);
  EXPECT_EQ(ring.front(), nullptr);
  EXPECT_EQ(ring.front(3), nullptr);
  EXPECT_NE(ring.back(), nullptr);
}

TEST(SpscRing, what_was_not_pushed_is_not_seen) {
  SpscRing<std::uint64_t> ring(4);
  *ring.back() = 7;
  EXPECT_EQ(ring.front(), nullptr);
  ring.push();
  ASSERT_NE(ring.front(), nullptr);
  EXPECT_EQ(*ring.front(), 7U);
}

TEST(SpscRing, holds_as_many_as_it_has_slots_and_no_more) {
  for (const std::size_t capacity : {1U, 2U, 8U}) {
    SpscRing<std::uint64_t> ring(capacity);
    for (std::uint64_t i = 0; i < capacity; ++i) {
      EXPECT_TRUE(put(ring, i)) << capacity;
    }
    EXPECT_FALSE(put(ring, 99)) << capacity;
    ASSERT_NE(ring.front(), nullptr);
    EXPECT_EQ(*ring.front(), 0U);
    ring.pop();
    EXPECT_TRUE(put(ring, capacity)) << capacity;
    EXPECT_FALSE(put(ring, 99)) << capacity;
    for (std::uint64_t i = 1; i <= capacity; ++i) {
      ASSERT_NE(ring.front(), nullptr) << capacity;
      EXPECT_EQ(*ring.front(), i) << capacity;
      ring.pop();
    }
    EXPECT_EQ(ring.front(), nullptr) << capacity;
  }
}

TEST(SpscRing, skip_looks_behind_the_oldest_without_taking_it) {
  SpscRing<std::uint64_t> ring(4);
  for (std::uint64_t round = 0; round < 5; ++round) {  // The seam lies elsewhere in each.
    for (std::uint64_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(put(ring, 10 * round + i));
    }
    for (std::uint64_t i = 0; i < 3; ++i) {
      ASSERT_NE(ring.front(i), nullptr);
      EXPECT_EQ(*ring.front(i), 10 * round + i);
    }
    EXPECT_EQ(ring.front(3), nullptr);
    EXPECT_EQ(ring.front(100), nullptr);
    ring.pop(2);
    EXPECT_EQ(*ring.front(), 10 * round + 2);
    EXPECT_EQ(ring.front(1), nullptr);
    ring.pop();
  }
}

TEST(SpscRing, elements_that_are_looked_at_keep_their_slots) {
  SpscRing<std::uint64_t> ring(2);
  ASSERT_TRUE(put(ring, 1));
  ASSERT_TRUE(put(ring, 2));
  ASSERT_NE(ring.front(1), nullptr);
  EXPECT_FALSE(put(ring, 3)) << "nothing was given back";
  ring.pop(2);
  EXPECT_TRUE(put(ring, 3));
  EXPECT_EQ(*ring.front(), 3U);
}

TEST(SpscRing, a_million_elements_pass_between_two_threads_in_order) {
  constexpr std::uint64_t kElements = 1'000'000;
  struct Element {
    std::uint64_t number = 0;
    std::uint64_t square = 0;
  };
  SpscRing<Element> ring(1024);
  std::thread producer([&] {
    for (std::uint64_t i = 0; i < kElements;) {
      Element* const slot = ring.back();
      if (slot == nullptr) {
        std::this_thread::yield();
        continue;
      }
      *slot = {.number = i, .square = i * i};
      ring.push();
      ++i;
    }
  });
  std::uint64_t wrong = 0;
  for (std::uint64_t next = 0; next < kElements;) {
    std::size_t seen = 0;
    for (; seen < 16; ++seen) {  // In bursts, as a datapath takes them.
      const Element* const element = ring.front(seen);
      if (element == nullptr) {
        break;
      }
      const std::uint64_t number = next + seen;
      wrong += element->number != number || element->square != number * number ? 1 : 0;
    }
    if (seen == 0) {
      std::this_thread::yield();
    }
    ring.pop(seen);
    next += seen;
  }
  producer.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(ring.front(), nullptr);
}

}  // namespace
}  // namespace harp::spsc_ring_test
