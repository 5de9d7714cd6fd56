// Quantised tensors of a bucket between blocks: as many messages as one tensor, the bits that each
// has by itself, and a clear error for what a peer may send.
#include "lightcc/compression/quantized/quantized_batch.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"
#include "lightcc/compression/exchange/tensor_batches.hpp"
#include "lightcc/compression/quantized/quantize.hpp"

#include "compression/compressed_world.hpp"

namespace lightcc::quantized_batch_test {
namespace {

using testing::Buffer;
using namespace testing::compressed_world;  // NOLINT(google-build-using-namespace)

constexpr CompressionSpec kInt8{.compressor = Compressor::kInt8};

TEST(QuantizedBatch, a_bucket_takes_as_many_messages_as_one_tensor) {
  for (const std::size_t tensors : {1U, 40U}) {
    World two({.blocks = 2});
    EXPECT_EQ(messages_of(two, many_sizes(tensors), kInt8).size(), 1U) << tensors;
    World three({.blocks = 3});  // Each block has a part of each tensor.
    EXPECT_EQ(messages_of(three, Sizes(tensors, 500), kInt8).size(), 2 * 2U) << tensors;
    World grid({.blocks = 2, .members = 2});
    EXPECT_EQ(messages_of(grid, many_sizes(tensors), kInt8).size(), 1U) << tensors;
    EXPECT_EQ(grid.rank(0).traffic(kWithinBlock).messages.size(), 3U) << tensors;
  }
}

TEST(QuantizedBatch, a_large_bucket_is_exchanged_in_parts) {
  World world({.blocks = 2});
  EXPECT_EQ(messages_of(world, {kExchangeElements - 1, 1, 100}, kInt8).size(), 2 + 1U);
}

TEST(QuantizedBatch, bytes_are_those_of_the_codes) {
  for (const Shape& shape : {Shape{.blocks = 2}, Shape{.blocks = 3}, Shape{3, 2}}) {
    World world(shape);
    messages_of(world, many_sizes(40), kInt8);
    for (const auto& rank : world.ranks()) {
      EXPECT_EQ(rank->traffic(kBetweenBlocks).bytes(), rank->counters().sent_bytes);
    }
  }
  World world({.blocks = 2});
  std::size_t codes = 0;
  for (const std::size_t size : many_sizes(40)) {
    codes += quantized_bytes(size, 8);
  }
  messages_of(world, many_sizes(40), kInt8);
  EXPECT_EQ(world.rank(0).counters().sent_bytes, codes);
}

TEST(QuantizedBatch, each_tensor_has_the_bits_that_it_has_by_itself) {
  for (const Compressor compressor : {Compressor::kInt8, Compressor::kInt4}) {
    for (const Shape& shape : {Shape{2, 1}, Shape{2, 2}, Shape{4, 1}, Shape{3, 2}}) {
      expect_the_bits_of_single_tensors(shape, {.compressor = compressor});
    }
  }
}

TEST(QuantizedBatch, whatever_bytes_come_there_is_a_result_or_an_error) {
  Rng rng(12);
  int errors = 0;
  for (std::uint64_t round = 0; round < 200; ++round) {
    const auto spoil = [&rng](std::size_t, Buffer& bytes) {
      for (std::size_t i = 0; i <= rng.below(4); ++i) {
        bytes[rng.below(bytes.size())] = static_cast<std::byte>(rng.below(256));
      }
    };
    const Status error = error_of(kInt8, {100, 500, 60, 1}, spoil, round);
    if (!error.ok()) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.message();
      ++errors;
    }
  }
  EXPECT_GT(errors, 0);
  EXPECT_LT(errors, 200);
}

}  // namespace
}  // namespace lightcc::quantized_batch_test
