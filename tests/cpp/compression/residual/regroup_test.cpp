// Residuals of ranks of one grid go to ranks of another one: nothing is lost or counted twice.
#include "lightcc/compression/residual/regroup.hpp"

#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/residual/residual_store.hpp"
#include "lightcc/compression/residual/shard.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::regroup_test {
namespace {

using testing::Buffer;
using testing::normal_values;
using testing::tensor_of;

constexpr std::size_t kElements = 1037;

struct Shape {
  std::size_t blocks = 1;
  std::size_t members = 1;
};

constexpr Shape kShapes[] = {{1, 1}, {2, 1}, {3, 1}, {2, 2}, {3, 2}, {2, 3}};

std::vector<GridPosition> positions_of(const Shape& shape) {
  std::vector<GridPosition> all;
  for (std::size_t block = 0; block < shape.blocks; ++block) {
    for (std::size_t member = 0; member < shape.members; ++member) {
      all.push_back({shape.blocks, block, shape.members, member});
    }
  }
  return all;
}

ShardRange shard_of(const GridPosition& position, DataType dtype) {
  return shard_range(kElements, position.members, position.member, dtype);
}

/// A step whose input is whole numbers, so that sums are exact.
template <typename T>
Bytes saved_shard(const GridPosition& position, DataType dtype, double momentum, int steps = 1) {
  ResidualStore store;
  const auto entry = store.entry({0, "a"}, ResidualOf::kShard, position, dtype, kElements);
  EXPECT_TRUE(entry.ok());
  const ShardRange range = shard_of(position, dtype);
  std::vector<T> shard(range.size_elems());
  for (std::size_t i = 0; i < shard.size(); ++i) {
    shard[i] = static_cast<T>((range.begin + i) % 100 + 1000 * (position.block + 1));
  }
  std::vector<std::byte> list(65536);
  const TopkRequest request{.k = 3, .capacity = 3, .exact = true, .momentum = momentum};
  for (int step = 0; step < steps; ++step) {
    const auto bytes = std::as_bytes(std::span(shard));
    EXPECT_TRUE((*entry)->state->on_host()->compress(bytes.data(), request, list).ok());
    (*entry)->state->commit();
  }
  (*entry)->steps = static_cast<std::uint64_t>(steps);
  return store.save()->front().second;
}

/// Adds to `sum`, of the whole tensor, the residual that is here.
void add_kept(const Bytes& saved, const GridPosition& position, std::vector<double>& sum) {
  ResidualStore store;
  const Status status = store.load({0, "a"}, saved);
  ASSERT_TRUE(status.ok()) << status.message();
  const DataType dtype = store.check({0, "a"}, saved)->dtype;
  const auto entry = store.entry({0, "a"}, ResidualOf::kShard, position, dtype, kElements);
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ((*entry)->steps, 1U);  // It still fits.
  Bytes bytes;
  ASSERT_TRUE((*entry)->state->save(bytes).ok());
  const auto state = HostResidual::load(bytes);
  const ShardRange range = shard_of(position, dtype);
  ASSERT_EQ(state->numel(), range.size_elems());
  for (std::size_t i = 0; i < state->numel(); ++i) {
    sum[range.begin + i] += state->residual_at(i) + 3.0 * state->velocity_at(i);
  }
}

/// Those of `parts` that go to a block of a grid of so many blocks.
std::vector<std::span<const std::byte>> parts_for(const std::vector<Bytes>& parts,
                                                  const std::vector<GridPosition>& from,
                                                  std::size_t block,
                                                  std::size_t blocks) {
  std::vector<std::span<const std::byte>> found;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (from[i].block % blocks == block) {
      found.emplace_back(parts[i]);
    }
  }
  return found;
}

template <typename T>
void check_sums(const Shape& before, const Shape& after, DataType dtype, double momentum) {
  const std::vector<GridPosition> from = positions_of(before);
  std::vector<Bytes> parts;
  std::vector<double> kept(kElements);
  for (const GridPosition& position : from) {
    parts.push_back(saved_shard<T>(position, dtype, momentum));
    add_kept(parts.back(), position, kept);
  }
  std::vector<double> sum(kElements);
  for (const GridPosition& position : positions_of(after)) {
    const auto mine = parts_for(parts, from, position.block, after.blocks);
    const auto regrouped = regroup_residual(parts.back(), mine, position);
    ASSERT_TRUE(regrouped.ok()) << regrouped.status().message();
    add_kept(*regrouped, position, sum);
  }
  EXPECT_EQ(sum, kept) << before.blocks << "x" << before.members << " to " << after.blocks << "x"
                       << after.members;
}

TEST(Regroup, the_sum_over_all_ranks_is_the_same_on_any_grid) {
  for (const Shape& before : kShapes) {
    for (const Shape& after : kShapes) {
      for (const double momentum : {0.0, 0.5}) {
        check_sums<float>(before, after, DataType::kFloat32, momentum);
        check_sums<double>(before, after, DataType::kFloat64, momentum);
      }
    }
  }
}

/// As if it were sent under one factor after another.
Bytes under(const Bytes& saved, const std::vector<double>& factors) {
  ResidualStore store;
  EXPECT_TRUE(store.load({0, "a"}, saved).ok());
  for (const double factor : factors) {
    EXPECT_TRUE(store.set_factor({0, "a"}, factor).ok());
  }
  return store.save()->front().second;
}

TEST(Regroup, parts_count_as_under_the_factors_of_then) {
  const std::vector<GridPosition> from = positions_of({2, 1});
  const GridPosition alone{.blocks = 1};
  std::vector<Bytes> parts;
  std::vector<double> kept(kElements);
  for (const GridPosition& position : from) {
    const bool is_first = position.block == 0;  // The other one has made a step more of a world.
    const std::vector<double> factors = is_first ? std::vector{0.5} : std::vector{0.5, 0.25};
    const Bytes saved = saved_shard<float>(position, DataType::kFloat32, 0.0);
    add_kept(saved, position, kept);
    parts.push_back(under(saved, factors));
  }
  const auto regrouped = regroup_residual(
      parts[0], std::vector<std::span<const std::byte>>{parts[0], parts[1]}, alone);
  ASSERT_TRUE(regrouped.ok()) << regrouped.status().message();
  std::vector<double> sum(kElements);
  add_kept(*regrouped, alone, sum);
  EXPECT_EQ(sum, kept);
}

TEST(Regroup, a_part_that_is_missing_costs_what_it_had) {
  const std::vector<GridPosition> from = positions_of({2, 2});
  std::vector<Bytes> parts;
  std::vector<double> kept(kElements);
  for (const GridPosition& position : from) {
    parts.push_back(saved_shard<float>(position, DataType::kFloat32, 0.0));
    if (parts.size() != 2) {
      add_kept(parts.back(), position, kept);
    }
  }
  const std::vector<std::span<const std::byte>> there = {parts[0], parts[2], parts[3]};
  const GridPosition alone{.blocks = 1};
  const auto regrouped = regroup_residual(parts[1], there, alone);
  ASSERT_TRUE(regrouped.ok());
  std::vector<double> sum(kElements);
  add_kept(*regrouped, alone, sum);
  EXPECT_EQ(sum, kept);
}

TEST(Regroup, refuses_what_does_not_belong_together) {
  constexpr DataType kType = DataType::kFloat32;
  const GridPosition first{2, 0, 1, 0};
  const GridPosition second{2, 1, 1, 0};
  const Bytes like = saved_shard<float>(first, kType, 0.0);
  const GridPosition here{.blocks = 3, .block = 1};
  const auto refuses = [&](const std::vector<std::span<const std::byte>>& parts) {
    return regroup_residual(like, parts, here).status().code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refuses({like, like}));
  EXPECT_TRUE(refuses({saved_shard<float>(second, kType, 0.0, 2)}));
  EXPECT_TRUE(refuses({saved_shard<float>(second, kType, 0.5)}));
  EXPECT_TRUE(refuses({saved_shard<float>({3, 1, 1, 0}, kType, 0.0)}));
  EXPECT_TRUE(refuses({saved_shard<double>(second, DataType::kFloat64, 0.0)}));
  Bytes damaged = saved_shard<float>(second, kType, 0.0);
  EXPECT_FALSE(refuses({like, damaged}));
  damaged.back() ^= std::byte{1};
  EXPECT_TRUE(refuses({damaged}));
  EXPECT_EQ(regroup_residual({}, {}, here).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace lightcc::regroup_test
