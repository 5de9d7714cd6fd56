#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/transport/shm/byte_ring.hpp"

namespace lightcc::shm_byte_ring_test {
namespace {

class Ring {
 public:
  explicit Ring(std::size_t capacity)
      : storage_(byte_ring_bytes(capacity) / 128 + 1),
        memory_(bytes().first(byte_ring_bytes(capacity))) {}
  std::span<std::byte> memory() { return memory_; }
  ByteRingHeader& header() { return *reinterpret_cast<ByteRingHeader*>(memory_.data()); }

 private:
  struct alignas(128) Block {
    std::byte bytes[128] = {};
  };
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(storage_)); }

  std::vector<Block> storage_;
  std::span<std::byte> memory_;
};

std::vector<std::byte> counted(std::size_t count, std::size_t start = 0) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((start + i) * 31 >> 2);
  }
  return bytes;
}

std::size_t value(Result<std::size_t> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : 0;
}

TEST(ByteRing, bytes_come_out_as_they_went_in) {
  Ring ring(64);
  ByteRingWriter writer(ring.memory(), 64);
  ByteRingReader reader(ring.memory(), 64);
  const auto sent = counted(40);
  EXPECT_EQ(value(writer.try_write(sent)), 40U);
  std::vector<std::byte> got(64);
  EXPECT_EQ(value(reader.try_read(got)), 40U);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), got.begin()));
  EXPECT_EQ(value(reader.try_read(got)), 0U);
}

TEST(ByteRing, a_full_ring_takes_nothing_and_every_slot_is_used) {
  Ring ring(64);
  ByteRingWriter writer(ring.memory(), 64);
  ByteRingReader reader(ring.memory(), 64);
  const auto sent = counted(100);
  EXPECT_EQ(value(writer.try_write(sent)), 64U);
  EXPECT_EQ(value(writer.try_write(sent)), 0U);
  std::vector<std::byte> one(1);
  EXPECT_EQ(value(reader.try_read(one)), 1U);
  EXPECT_EQ(value(writer.try_write(sent)), 1U);
  EXPECT_EQ(value(writer.try_write({})), 0U);
}

TEST(ByteRing, a_capacity_of_one_works) {
  Ring ring(1);
  ByteRingWriter writer(ring.memory(), 1);
  ByteRingReader reader(ring.memory(), 1);
  const auto sent = counted(3);
  std::vector<std::byte> got(3);
  EXPECT_EQ(value(writer.try_write(sent)), 1U);
  EXPECT_EQ(value(reader.try_read(got)), 1U);
  EXPECT_EQ(got[0], sent[0]);
}

TEST(ByteRing, a_stream_between_two_threads_keeps_its_order) {
  constexpr std::size_t kTotal = 300'000;
  Ring ring(256);
  const auto sent = counted(kTotal);
  std::vector<std::byte> got(kTotal);
  std::thread other([&] {
    ByteRingWriter writer(ring.memory(), 256);
    std::mt19937 random(1);
    for (std::size_t done = 0; done < kTotal;) {
      const std::size_t want = std::min<std::size_t>(random() % 400, kTotal - done);
      done += value(writer.try_write(std::span(sent).subspan(done, want)));
      ::sched_yield();
    }
  });
  ByteRingReader reader(ring.memory(), 256);
  std::mt19937 random(2);
  for (std::size_t done = 0; done < kTotal;) {
    const std::size_t want = std::min<std::size_t>(random() % 400, kTotal - done);
    const std::size_t count = value(reader.try_read(std::span(got).subspan(done, want)));
    done += count;
    if (count == 0) {
      ::sched_yield();
    }
  }
  other.join();
  EXPECT_TRUE(sent == got);
}

TEST(ByteRing, a_count_that_the_other_end_cannot_have_reached_is_peer_failed) {
  const auto sent = counted(8);
  std::vector<std::byte> got(8);
  for (const std::uint64_t bad : {std::uint64_t{17}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    Ring ring(16);
    ByteRingReader reader(ring.memory(), 16);
    ring.header().written = bad;
    EXPECT_EQ(reader.try_read(got).status().code(), ErrorCode::kPeerFailed);
  }
  for (const std::uint64_t bad :
       {std::uint64_t{9}, std::uint64_t{1} << 40, ~std::uint64_t{0} - 8}) {
    Ring ring(16);
    ByteRingWriter writer(ring.memory(), 16);
    EXPECT_EQ(value(writer.try_write(sent)), 8U);
    ring.header().read = bad;
    EXPECT_EQ(writer.try_write(sent).status().code(), ErrorCode::kPeerFailed);
  }
}

TEST(ByteRing, unsuitable_memory_is_refused) {
  Ring ring(64);
  const auto sent = counted(4);
  const auto code = [&](std::span<std::byte> memory, std::size_t capacity) {
    return ByteRingWriter(memory, capacity).try_write(sent).status().code();
  };
  EXPECT_EQ(code(ring.memory(), 63), ErrorCode::kInternal);
  EXPECT_EQ(code(ring.memory(), 0), ErrorCode::kInternal);
  EXPECT_EQ(code(ring.memory(), 128), ErrorCode::kInternal);
  EXPECT_EQ(code(ring.memory().subspan(8), 16), ErrorCode::kInternal);
  EXPECT_EQ(code(ring.memory().first(100), 16), ErrorCode::kInternal);
  EXPECT_EQ(code({}, 16), ErrorCode::kInternal);
}

}  // namespace
}  // namespace lightcc::shm_byte_ring_test
