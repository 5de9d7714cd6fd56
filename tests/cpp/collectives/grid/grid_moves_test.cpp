// Two-level reduce-scatters, all-gathers and broadcasts, with ranks as threads: what they bring
// where, and what they send.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/group.hpp"

#include "collectives/grid/grid_testing.hpp"
#include "collectives/shm/shm_testing.hpp"
#include "doubles/fault_plan.hpp"

namespace lightcc::grid_moves_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)
using testing::GridShape;          // The engine has another.

using Counts = std::vector<std::size_t>;

constexpr GridShape kShapes[] = {
    {.blocks = 2, .members = 2},
    {.blocks = 2, .members = 3},
    {.blocks = 3, .members = 2, .exchanges = 1},
    {.blocks = 2, .members = 2, .interleaved = true},
    {.blocks = 3, .members = 2, .exchanges = 3, .interleaved = true},
    {.blocks = 1, .members = 2},
    {.blocks = 2, .members = 1},
    {.blocks = 3, .members = 2, .shared = false},
    {.blocks = 2, .members = 3, .interleaved = true, .shared = false},
};

std::size_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// One for each rank: equal, odd, none at all, one rank's only, and some at random.
std::vector<Counts> counts_for(const GridShape& shape) {
  const auto size = static_cast<std::size_t>(shape.size());
  std::vector<Counts> all = {Counts(size, 0), Counts(size, 1), Counts(size, 64), Counts(size, 333)};
  for (const std::size_t only : {std::size_t{0}, size - 1}) {
    all.emplace_back(size, 0);
    all.back()[only] = 3001;
  }
  std::mt19937_64 random(size);
  for (int round = 0; round < 3; ++round) {
    Counts& counts = all.emplace_back();
    for (std::size_t rank = 0; rank < size; ++rank) {
      counts.push_back(random() % 3 == 0 ? 0 : random() % 700);
    }
  }
  return all;
}

/// The part of `whole` that `rank` has, of elements of `width` bytes.
Buffer part_of(const Buffer& whole, const Counts& counts, int rank, std::size_t width) {
  const auto own = static_cast<std::ptrdiff_t>(rank);
  const auto start = static_cast<std::ptrdiff_t>(
      std::accumulate(counts.begin(), counts.begin() + own, std::size_t{0}) * width);
  const auto bytes = static_cast<std::ptrdiff_t>(counts[static_cast<std::size_t>(rank)] * width);
  return {whole.begin() + start, whole.begin() + start + bytes};
}

TEST(GridReduceScatter, every_rank_has_its_part_of_what_an_allreduce_gives) {
  for (const GridShape& shape : kShapes) {
    on_grid(shape, FaultPlan(3).delay(2).fragment(300).capacity(2048), [&](const GridRank& me) {
      for (const Counts& counts : counts_for(shape)) {
        const std::size_t count = sum(counts);
        const auto inputs = inputs_of(shape, DataType::kFloat32, count);
        const Buffer& own = inputs[static_cast<std::size_t>(me.rank())];
        Buffer out(counts[static_cast<std::size_t>(me.rank())] * 4);
        me.expect_done(me.group.reduce_scatter(own.data(), out.data(), counts, {}));
        const Buffer expected = grid_reference(shape, pointers(inputs), count, {});
        ASSERT_EQ(out, part_of(expected, counts, me.rank(), 4)) << name_of(shape);
        Buffer all(count * 4);
        me.expect_done(
            me.group.allreduce({{.in = own.data(), .out = all.data(), .count = count}}, {}));
        ASSERT_EQ(all, expected) << name_of(shape);
      }
    });
  }
}

TEST(GridReduceScatter, every_operator_works_on_every_dtype_with_factors_applied_once) {
  for (const GridShape& shape : {kShapes[1], kShapes[4]}) {
    on_grid(shape, FaultPlan(1), [&](const GridRank& me) {
      Counts counts(static_cast<std::size_t>(shape.size()), 123);
      counts[1] = 500;
      counts[2] = 0;
      const std::size_t count = sum(counts);
      for (std::size_t d = 0; d < kDataTypeCount; ++d) {
        const auto dtype = static_cast<DataType>(d);
        const auto inputs = inputs_of(shape, dtype, count);
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
          if (!is_reducible(dtype, op)) {
            continue;
          }
          const Reduction reduction{
              .dtype = dtype, .op = op, .prescale = 0.5, .postscale = 1.0 / shape.size()};
          const std::size_t width = element_size(dtype);
          Buffer out(counts[static_cast<std::size_t>(me.rank())] * width);
          me.expect_done(me.group.reduce_scatter(
              inputs[static_cast<std::size_t>(me.rank())].data(), out.data(), counts, reduction));
          ASSERT_EQ(out,
                    part_of(grid_reference(shape, pointers(inputs), count, reduction),
                            counts,
                            me.rank(),
                            width))
              << name_of(shape) << ", " << data_type_name(dtype) << ", " << reduce_op_name(op);
        }
      }
    });
  }
}

TEST(GridReduceScatter, whole_numbers_have_the_bits_of_a_flat_group_and_null_gives_zeros) {
  for (const GridShape& shape : kShapes) {
    on_grid(shape, FaultPlan(1), [&](const GridRank& me) {
      const Counts counts(static_cast<std::size_t>(shape.size()), 77);
      const std::size_t count = sum(counts);
      const auto inputs = inputs_of(shape, DataType::kInt32, count);
      auto given = pointers(inputs);
      given[0] = nullptr;
      Buffer out(77 * std::size_t{4});
      const Reduction reduction{.dtype = DataType::kInt32};
      me.expect_done(me.group.reduce_scatter(
          me.rank() == 0 ? nullptr : inputs[static_cast<std::size_t>(me.rank())].data(),
          out.data(),
          counts,
          reduction));
      ASSERT_EQ(out, part_of(reference(given, count, reduction), counts, me.rank(), 4))
          << name_of(shape);
    });
  }
}

TEST(GridAllgather, parts_of_any_sizes_arrive_in_the_order_of_ranks_in_place_too) {
  for (const GridShape& shape : kShapes) {
    on_grid(shape, FaultPlan(4).delay(2).fragment(300).capacity(2048), [&](const GridRank& me) {
      for (const Counts& bytes : counts_for(shape)) {
        Buffer expected;
        for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
          const Buffer part = pattern(bytes[rank], rank);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        const auto own = static_cast<std::size_t>(me.rank());
        const Buffer in = pattern(bytes[own], own);
        Buffer out(expected.size());
        me.expect_done(me.group.allgather(in.data(), out.data(), bytes));
        ASSERT_EQ(out, expected) << name_of(shape);
        Buffer both(expected.size());
        const std::size_t start = std::accumulate(
            bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(own), std::size_t{0});
        std::copy(in.begin(), in.end(), both.begin() + static_cast<std::ptrdiff_t>(start));
        me.expect_done(me.group.allgather(both.data() + start, both.data(), bytes));
        ASSERT_EQ(both, expected) << name_of(shape) << ", in place";
      }
    });
  }
}

TEST(GridBroadcast, every_root_reaches_everybody_with_any_number_of_bytes) {
  for (const GridShape& shape : kShapes) {
    on_grid(shape, FaultPlan(5).delay(2).fragment(300).capacity(2048), [&](const GridRank& me) {
      for (int root = 0; root < shape.size(); ++root) {
        for (const std::size_t bytes : {0U, 1U, 63U, 64U, 65U, 511U, 512U, 513U, 5000U}) {
          const Buffer expected = pattern(bytes, bytes + static_cast<std::uint64_t>(root));
          Buffer data = me.rank() == root ? expected : Buffer(bytes);
          me.expect_done(me.group.broadcast(data.data(), bytes, root));
          ASSERT_EQ(data, expected) << name_of(shape) << ", root " << root << ", " << bytes;
        }
      }
    });
  }
}

TEST(GridMoves, different_operations_follow_each_other_on_bad_links) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const GridShape& shape = kShapes[seed % 5];
    on_grid(shape, FaultPlan(seed).delay(5).fragment(128).capacity(1024), [&](const GridRank& me) {
      std::mt19937_64 random(seed);  // The same on all ranks.
      const auto size = static_cast<std::size_t>(shape.size());
      const auto own = static_cast<std::size_t>(me.rank());
      for (int round = 0; round < 15; ++round) {
        const std::size_t count = 1 + random() % 900;
        const Counts counts(size, count);
        const auto inputs = inputs_of(shape, DataType::kInt32, count * size);
        const Reduction reduction{.dtype = DataType::kInt32};
        Buffer part(count * 4);
        me.expect_done(me.group.reduce_scatter(inputs[own].data(), part.data(), counts, reduction));
        Buffer whole(count * size * 4);
        me.expect_done(me.group.allgather(part.data(), whole.data(), Counts(size, count * 4)));
        ASSERT_EQ(whole, reference(pointers(inputs), count * size, reduction))
            << "seed " << seed << ", round " << round;
        const auto root = static_cast<int>(random() % size);
        if (me.rank() != root) {
          whole.assign(whole.size(), std::byte{0});
        }
        me.expect_done(me.group.broadcast(whole.data(), whole.size(), root));
        ASSERT_EQ(whole, reference(pointers(inputs), count * size, reduction));
      }
    });
  }
}

TEST(GridMoves, what_is_larger_or_wrong_is_left_to_the_flat_group) {
  GridShape shape{.blocks = 2, .members = 2, .max_bytes = 4000, .interleaved = true};
  on_grid(shape, FaultPlan(1), [&](const GridRank& me) {
    for (const std::size_t count : {std::size_t{250}, std::size_t{251}}) {
      const Counts counts(4, count);
      const auto inputs = inputs_of(shape, DataType::kFloat32, count * 4);
      const Buffer flat = net_reference(pointers(inputs), count * 4, {});
      const Buffer two_level = grid_reference(shape, pointers(inputs), count * 4, {});
      ASSERT_NE(flat, two_level) << "the numbers do not tell the groups apart";
      Buffer out(count * 4);
      me.expect_done(me.group.reduce_scatter(
          inputs[static_cast<std::size_t>(me.rank())].data(), out.data(), counts, {}));
      ASSERT_EQ(out, part_of(count == 250 ? two_level : flat, counts, me.rank(), 4));
    }
    Buffer data(64);
    const Reduction adasum{.op = ReduceOp::kAdasum};
    for (auto *const start :
         {+[](Group& group, std::byte* x, const Reduction&) { return group.broadcast(x, 8, 4); },
          +[](Group& group, std::byte* x, const Reduction&) {
            return group.allgather(x, x, {1, 2, 3});
          },
          +[](Group& group, std::byte* x, const Reduction&) {
            return group.reduce_scatter(x, x + 32, {1, 2, 3}, {});
          },
          +[](Group& group, std::byte* x, const Reduction& reduction) {
            return group.reduce_scatter(x, x + 32, {1, 1, 1, 1}, reduction);
          }}) {
      EXPECT_EQ(me.run(start(me.group, data.data(), adasum)).code(), ErrorCode::kInvalidArgument);
    }
  });
}

/// What the ranks of one block sent to those of others cannot be told from bytes_sent() alone; but
/// nothing of a two-level operation goes to the own block.
TEST(GridMoves, every_byte_crosses_to_a_block_once) {
  constexpr std::size_t kCount = std::size_t{6} * 8192;
  for (GridShape shape : {kShapes[0], kShapes[1], kShapes[2], kShapes[4]}) {
    shape.chunk_bytes = std::size_t{64} << 10;
    on_grid(shape, FaultPlan(1), [&](const GridRank& me) {
      const auto size = static_cast<std::size_t>(shape.size());
      const auto blocks = static_cast<double>(shape.blocks);
      const double bytes = kCount * 4;
      const auto sent_by = [&](const std::function<std::unique_ptr<Work>()>& start) {
        const std::uint64_t before = me.transport.bytes_sent();
        me.expect_done(start());
        return static_cast<double>(me.transport.bytes_sent() - before);
      };
      Buffer whole(kCount * 4);
      Buffer part(kCount * 4 / size);
      const double scattered = sent_by([&] {
        return me.group.reduce_scatter(whole.data(), part.data(), Counts(size, kCount / size), {});
      });
      const double a_share = (blocks - 1) / blocks * bytes / shape.members;
      EXPECT_NEAR(scattered, a_share, a_share / 50) << name_of(shape);
      const double gathered = sent_by(
          [&] { return me.group.allgather(part.data(), whole.data(), Counts(size, part.size())); });
      EXPECT_NEAR(gathered, a_share, a_share / 50) << name_of(shape);
      const double sent = sent_by([&] { return me.group.broadcast(whole.data(), kCount * 4, 0); });
      const double a_shard = bytes / shape.members;
      if (shape.block_of(me.rank()) == 0) {
        EXPECT_GE(sent, a_shard) << name_of(shape);
        EXPECT_LE(sent, (blocks - 1) * a_shard * 1.02) << name_of(shape);
      } else if (shape.blocks == 2) {
        EXPECT_EQ(sent, 0.0) << name_of(shape);
      }
    });
  }
}

}  // namespace
}  // namespace lightcc::grid_moves_test
