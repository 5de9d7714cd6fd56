// The tensors of a bucket between blocks: as many messages as one tensor, the bits that each has by
// itself, and a clear error for whatever a peer may send.
#include "lightcc/compression/topk/topk_batch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"
#include "lightcc/compression/exchange/tensor_batches.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

#include "compression/compressed_world.hpp"

namespace lightcc::topk_batch_test {
namespace {

using testing::Buffer;
using namespace testing::compressed_world;  // NOLINT(google-build-using-namespace)

TEST(TopkBatch, a_bucket_takes_as_many_messages_as_one_tensor) {
  for (const Shape& shape : {Shape{.blocks = 2}, Shape{.blocks = 3}, Shape{2, 2}}) {
    for (const std::size_t tensors : {1U, 40U}) {
      World world(shape);
      const auto others = static_cast<std::size_t>(shape.blocks - 1);
      const auto messages = messages_of(world, many_sizes(tensors), {.ratio = 0.05});
      EXPECT_EQ(messages.size(), 2 * others) << shape.blocks << " blocks, " << tensors;
    }
  }
}

TEST(TopkBatch, members_of_a_block_move_a_bucket_in_three_operations) {
  for (const double ratio : {0.05, 0.3}) {  // They gather lists, or sums.
    for (const std::size_t tensors : {1U, 40U}) {
      World world({.blocks = 2, .members = 3});
      messages_of(world, many_sizes(tensors), {.ratio = ratio});
      EXPECT_EQ(world.rank(0).traffic(kWithinBlock).messages.size(), 3 * 2U) << tensors;
    }
  }
}

TEST(TopkBatch, bytes_are_those_of_the_lists_and_16_for_each) {
  for (const Shape& shape : {Shape{.blocks = 3}, Shape{2, 2}}) {
    World world(shape);
    const Sizes sizes = many_sizes(40);
    world.run_all(sizes, {.ratio = 0.05, .exact = true}, 1);
    world.expect_ok();
    const auto others = static_cast<std::size_t>(shape.blocks - 1);
    for (const auto& rank : world.ranks()) {
      EXPECT_EQ(rank->counters().tensors, sizes.size());
      EXPECT_EQ(rank->traffic(kBetweenBlocks).bytes(),
                others * 16 * sizes.size() + rank->counters().sent_bytes);
    }
    std::size_t lists = 0;
    for (const std::size_t size : sizes) {
      const std::size_t shard =
          shard_range(size, static_cast<std::size_t>(shape.members), 0, DataType::kFloat32)
              .size_elems();
      lists += 16 + 4 + topk_k(shard, 0.05) * 6;
    }
    EXPECT_EQ(world.rank(0).counters().sent_bytes, others * lists);
  }
}

TEST(TopkBatch, lists_of_2_bits_take_less_than_2_bytes_an_entry) {
  World world({2, 2});
  const Sizes sizes = many_sizes(40);
  const double ratio = 0.05;
  world.run_all(sizes, {.ratio = ratio, .two_bits = true, .exact = true}, 1);
  world.expect_ok();
  const std::uint64_t sent = world.rank(0).counters().sent_bytes;
  EXPECT_EQ(world.rank(0).traffic(kBetweenBlocks).bytes(), 16 * sizes.size() + sent);
  double most = 0.0;
  for (const std::size_t size : sizes) {
    const std::size_t shard = shard_range(size, 2, 0, DataType::kFloat32).size_elems();
    const double chunks = std::ceil(static_cast<double>(shard) / 4096.0);
    most += 16 + 8 * chunks + 1.75 * static_cast<double>(topk_k(shard, ratio));
  }
  EXPECT_LE(static_cast<double>(sent), most);
}

TEST(TopkBatch, pieces_take_three_operations_and_dense_tensors_one_each) {
  World pieces({.blocks = 3});
  const auto messages = messages_of(pieces, many_sizes(40), {.ratio = 0.4});
  EXPECT_EQ(messages.size(), 3 * 2U);
  World dense({.blocks = 3});
  EXPECT_EQ(messages_of(dense, many_sizes(40), {.ratio = 1.0}).size(), 40 * 2U);
}

TEST(TopkBatch, a_large_bucket_is_exchanged_in_parts) {
  constexpr std::size_t kHalf = kExchangeElements / 2;
  World world({.blocks = 2});
  const auto messages =
      messages_of(world, {kHalf, kHalf, kHalf + 7, 100, kHalf, 100}, {.ratio = 0.001});
  EXPECT_EQ(messages.size(), 3 * 2U);
}

TEST(TopkBatch, nothing_but_headers_travels_where_all_is_skipped) {
  World world({.blocks = 2});
  world.run({500}, 0, 1, {.ratio = 0.05}, 1, 0);
  world.expect_ok();
  EXPECT_EQ(world.rank(0).traffic(kBetweenBlocks).messages, std::vector<std::size_t>{16});
}

/// By this ratio, tensors of kMixed go all three ways.
constexpr double kMixedRatio = 0.27;

TEST(TopkBatch, each_tensor_has_the_bits_that_it_has_by_itself) {
  std::set<TopkExchange> exchanges;
  for (const std::size_t size : kMixed) {
    exchanges.insert(plan_topk(size, 1, 3, kMixedRatio, {.dtype = DataType::kFloat32}).exchange);
  }
  EXPECT_EQ(exchanges.size(), 3U);
  expect_the_bits_of_single_tensors({.blocks = 3}, {.ratio = kMixedRatio, .momentum = 0.5});
  expect_the_bits_of_single_tensors({3, 2}, {.ratio = kMixedRatio});
  expect_the_bits_of_single_tensors({2, 3}, {.ratio = 0.02});
  expect_the_bits_of_single_tensors({2, 2}, {.ratio = 0.3, .fp16 = true});
  expect_the_bits_of_single_tensors({2, 2}, {.ratio = 0.05, .two_bits = true});
  expect_the_bits_of_single_tensors({17, 1}, {.ratio = 0.2, .two_bits = true});  // In pieces.
  expect_the_bits_of_single_tensors({17, 1}, {.ratio = 1.0});
}

/// The residual of each rank and tensor.
std::vector<std::vector<Bytes>> kept_back(World& world) {
  std::vector<std::vector<Bytes>> all;
  for (const auto& rank : world.ranks()) {
    all.push_back(rank->kept_back());
  }
  return all;
}

TEST(TopkBatch, a_step_that_is_cut_off_anywhere_leaves_what_was_before_or_after_it) {
  const Shape shape{2, 2};
  for (const CompressionSpec& spec : {CompressionSpec{.ratio = 0.02, .momentum = 0.9},
                                      CompressionSpec{.ratio = kMixedRatio},
                                      CompressionSpec{.ratio = 1.0},
                                      CompressionSpec{.compressor = Compressor::kInt4}}) {
    World whole(shape);
    whole.run_all(kMixed, spec, 0);
    const auto before = kept_back(whole);
    whole.run_all(kMixed, spec, 1);
    const auto after = kept_back(whole);
    std::size_t ended = 0;
    for (int turns = 0; ended < after.size() * kMixed.size(); turns += 17) {
      World world(shape);
      world.run_all(kMixed, spec, 0);
      world.run_in_part(kMixed, spec, 1, turns);
      ended = 0;
      const auto kept = kept_back(world);
      for (std::size_t rank = 0; rank < after.size(); ++rank) {
        for (std::size_t i = 0; i < kMixed.size(); ++i) {
          const bool is_after = kept[rank][i] == after[rank][i];
          ended += is_after ? 1 : 0;
          ASSERT_TRUE(is_after || kept[rank][i] == before[rank][i]) << "rank " << rank << ", " << i;
        }
      }
      ASSERT_LT(turns, kPatience);
    }
  }
}

// --- What a peer may send ------------------------------------------------------------------------

/// A header with another number at `index`.
std::function<void(std::size_t, Buffer&)> with_number(std::size_t index, std::uint64_t number) {
  return [index, number](std::size_t message, Buffer& bytes) {
    if (message == 0) {
      ASSERT_GE(bytes.size(), (index + 1) * sizeof(number));
      std::memcpy(bytes.data() + index * sizeof(number), &number, sizeof(number));
    }
  };
}

TEST(TopkBatch, a_list_that_is_too_long_is_refused_with_its_length) {
  const Sizes sizes{500, 500, 500};
  for (const std::uint64_t bytes : {std::uint64_t{1000}, ~std::uint64_t{0}}) {
    const Status error = error_of({.ratio = 0.05}, sizes, with_number(3, bytes));
    EXPECT_EQ(error.code(), ErrorCode::kPeerFailed);
    EXPECT_EQ(error.message(),
              "block 1 announced a top-k list of " + std::to_string(bytes) +
                  " bytes, where at most 212 are possible");
  }
  const Status of_pieces = error_of({.ratio = 0.6}, {5000, 5000}, with_number(1, 1U << 20));
  EXPECT_NE(of_pieces.message().find("block 1 announced a top-k list of 1048576 bytes"),
            std::string::npos)
      << of_pieces.message();
}

TEST(TopkBatch, lists_that_do_not_add_up_to_what_was_announced_are_refused) {
  const Sizes sizes{500, 500, 500};
  for (const std::uint64_t bytes : {0U, 16U, 20U, 100U, 169U, 171U, 212U}) {
    const Status error = error_of({.ratio = 0.05}, sizes, with_number(3, bytes));
    EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << bytes;
    EXPECT_NE(error.message().find("rank 1 sent a message of 510 bytes where "), std::string::npos)
        << error.message();
  }
  // The same sum in all, but not list by list.
  const auto shifted = [](std::size_t message, Buffer& bytes) {
    with_number(1, 170 - 6)(message, bytes);
    with_number(3, 170 + 6)(message, bytes);
  };
  const Status error = error_of({.ratio = 0.05}, sizes, shifted);
  EXPECT_NE(error.message().find("a top-k list of 164 bytes, where 25 entries take 170"),
            std::string::npos)
      << error.message();
}

TEST(TopkBatch, whatever_bytes_come_there_is_a_result_or_an_error) {
  Rng rng(11);
  int errors = 0;
  for (std::uint64_t round = 0; round < 300; ++round) {
    const std::size_t spoiled = rng.below(2);
    const auto spoil = [&rng, spoiled](std::size_t message, Buffer& bytes) {
      for (std::size_t i = 0; message == spoiled && i <= rng.below(4); ++i) {
        bytes[rng.below(bytes.size())] = static_cast<std::byte>(rng.below(256));
      }
    };
    const Status error =
        error_of({.ratio = round % 2 == 0 ? 0.05 : 0.6}, {100, 500, 60, 1}, spoil, round);
    if (!error.ok()) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.message();
      ++errors;
    }
  }
  EXPECT_GT(errors, 50);
  EXPECT_LT(errors, 300);
}

}  // namespace
}  // namespace lightcc::topk_batch_test
