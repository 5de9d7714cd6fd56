#include "sync/seq_words.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace harp::seq_words_test {
namespace {

TEST(SeqWords, what_was_never_written_cannot_be_read) {
  std::array<std::uint64_t, 4> words{};
  const SeqWords block(words);
  std::array<std::uint64_t, 3> out{};
  EXPECT_EQ(block.room(), 3U);
  EXPECT_FALSE(block.try_read(out));
}

TEST(SeqWords, what_was_written_is_read_and_counted) {
  std::array<std::uint64_t, 4> words{};
  SeqWords block(words);
  const std::array<std::uint64_t, 3> first{7, 8, 9};
  block.write(first);
  EXPECT_EQ(words, (std::array<std::uint64_t, 4>{2, 7, 8, 9}));
  block.write(std::array<std::uint64_t, 1>{5});
  std::array<std::uint64_t, 3> out{};
  ASSERT_TRUE(block.try_read(out));
  EXPECT_EQ(out, (std::array<std::uint64_t, 3>{5, 8, 9})) << "what is behind the last stays";
  EXPECT_EQ(words[0], 4U);
}

TEST(SeqWords, what_is_being_written_cannot_be_read) {
  std::array<std::uint64_t, 2> words{3, 1};
  std::array<std::uint64_t, 1> out{};
  EXPECT_FALSE(SeqWords(words).try_read(out));
}

TEST(SeqWords, a_reader_never_gets_words_of_two_times) {
  constexpr std::uint64_t kWritings = 20'000;
  constexpr std::size_t kValues = 64;
  std::vector<std::uint64_t> words(SeqWords::kHeadWords + kValues);
  std::atomic<bool> is_read{false};
  std::atomic<bool> is_written{false};
  std::thread writer([&] {
    SeqWords block(words);
    std::vector<std::uint64_t> values(kValues);
    for (std::uint64_t i = 1; i <= kWritings || !is_read.load(); ++i) {
      std::iota(values.begin(), values.end(), i * kValues);
      block.write(values);
      if (i % 64 == 0) {
        std::this_thread::yield();
      }
    }
    is_written.store(true);
  });
  const SeqWords block(words);
  std::vector<std::uint64_t> values(kValues);
  std::vector<std::uint64_t> expected(kValues);
  std::uint64_t mixed = 0;
  std::uint64_t last = 0;
  std::uint64_t backwards = 0;
  while (!is_written.load()) {
    if (!block.try_read(values)) {
      continue;
    }
    std::iota(expected.begin(), expected.end(), values[0]);
    mixed += values == expected ? 0 : 1;
    backwards += values[0] < last ? 1 : 0;
    last = values[0];
    is_read.store(true);
  }
  writer.join();
  EXPECT_EQ(mixed, 0U);
  EXPECT_EQ(backwards, 0U);
}

}  // namespace
}  // namespace harp::seq_words_test
