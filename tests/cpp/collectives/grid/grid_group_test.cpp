// The two-level all-reduce, with ranks as threads, at the seams of shards and chunks.
#include "lightcc/collectives/grid/grid_group.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"

#include "collectives/grid/grid_testing.hpp"
#include "collectives/shm/shm_testing.hpp"
#include "doubles/fault_plan.hpp"

namespace lightcc::grid_group_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)
using testing::GridShape;          // The engine has another.

constexpr GridShape kShapes[] = {
    {.blocks = 2, .members = 2},
    {.blocks = 2, .members = 3},
    {.blocks = 3, .members = 2, .exchanges = 1},
    {.blocks = 4, .members = 2, .exchanges = 3},
    {.blocks = 1, .members = 2},
    {.blocks = 2, .members = 1},
    {.blocks = 2, .members = 2, .interleaved = true},
    {.blocks = 3, .members = 2, .shared = false},
    {.blocks = 2, .members = 3, .interleaved = true, .shared = false},
};

/// Counts of float32 around lines, shards of 256 bytes and chunks of 512.
std::vector<std::size_t> seams() {
  return {0, 1, 15, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 3 * 128 + 5, 11 * 128 - 1, 5000};
}

TEST(GridGroup, allreduce_is_the_sum_of_block_sums_at_every_seam) {
  for (const GridShape& shape : kShapes) {
    on_grid(shape, FaultPlan(3).fragment(300).capacity(2048), [&](const GridRank& me) {
      for (const std::size_t count : seams()) {
        const auto inputs = inputs_of(shape, DataType::kFloat32, count);
        const Buffer expected = grid_reference(shape, pointers(inputs), count, {});
        Buffer data = inputs[static_cast<std::size_t>(me.rank())];
        Buffer out(data.size());
        me.expect_done(
            me.group.allreduce({{.in = data.data(), .out = out.data(), .count = count}}, {}));
        ASSERT_EQ(out, expected) << name_of(shape) << ", " << count << " elements";
        ASSERT_EQ(data, inputs[static_cast<std::size_t>(me.rank())]) << "the input was changed";
        me.expect_done(
            me.group.allreduce({{.in = data.data(), .out = data.data(), .count = count}}, {}));
        ASSERT_EQ(data, expected) << name_of(shape) << ", " << count << " elements, in place";
      }
    });
  }
}

TEST(GridGroup, every_operator_works_on_every_dtype_with_factors_applied_once) {
  constexpr std::size_t kCount = 700;
  for (const GridShape& shape : {kShapes[0], kShapes[1], kShapes[2]}) {
    on_grid(shape, FaultPlan(1), [&](const GridRank& me) {
      for (std::size_t d = 0; d < kDataTypeCount; ++d) {
        const auto dtype = static_cast<DataType>(d);
        const auto inputs = inputs_of(shape, dtype, kCount);
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
          for (const double factor : {1.0, 0.25}) {
            if (!is_reducible(dtype, op)) {
              continue;
            }
            const Reduction reduction{
                .dtype = dtype, .op = op, .prescale = 2 * factor, .postscale = factor};
            Buffer data = inputs[static_cast<std::size_t>(me.rank())];
            me.expect_done(me.group.allreduce(
                {{.in = data.data(), .out = data.data(), .count = kCount}}, reduction));
            ASSERT_EQ(data, grid_reference(shape, pointers(inputs), kCount, reduction))
                << name_of(shape) << ", " << data_type_name(dtype) << ", " << reduce_op_name(op);
          }
        }
      }
    });
  }
}

TEST(GridGroup, an_average_of_large_float16_numbers_does_not_overflow) {
  constexpr std::size_t kCount = 100;
  constexpr std::uint16_t kSixtyThousand = 0x7b53;  // Two of them are more than float16 can hold.
  on_grid(kShapes[0], FaultPlan(1), [&](const GridRank& me) {
    std::vector<std::uint16_t> data(kCount, kSixtyThousand);
    auto* const memory = reinterpret_cast<std::byte*>(data.data());
    const Reduction average{.dtype = DataType::kFloat16, .postscale = 0.25};
    me.expect_done(me.group.allreduce({{.in = memory, .out = memory, .count = kCount}}, average));
    EXPECT_EQ(data, std::vector<std::uint16_t>(kCount, kSixtyThousand));
  });
}

TEST(GridGroup, whole_numbers_have_the_bits_of_a_flat_group) {
  constexpr std::size_t kCount = 999;
  for (const GridShape& shape : kShapes) {
    on_grid(shape, FaultPlan(1), [&](const GridRank& me) {
      for (const DataType dtype : {DataType::kInt8, DataType::kInt32, DataType::kUint16}) {
        const auto inputs = inputs_of(shape, dtype, kCount);
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
          const Reduction reduction{.dtype = dtype, .op = op, .postscale = 0.25};
          Buffer data = inputs[static_cast<std::size_t>(me.rank())];
          me.expect_done(me.group.allreduce(
              {{.in = data.data(), .out = data.data(), .count = kCount}}, reduction));
          ASSERT_EQ(data, reference(pointers(inputs), kCount, reduction))
              << name_of(shape) << ", " << data_type_name(dtype) << ", " << reduce_op_name(op);
        }
      }
    });
  }
}

TEST(GridGroup, a_bucket_of_several_tensors_is_reduced_where_they_lie) {
  constexpr std::array<std::size_t, 7> kCounts{1, 0, 130, 64, 3, 500, 77};
  for (const GridShape& shape : kShapes) {
    on_grid(shape, FaultPlan(2).delay(3), [&](const GridRank& me) {
      std::vector<Buffer> data;
      std::vector<Buffer> expected;
      std::vector<TensorSpan> spans;
      for (std::size_t i = 0; i < kCounts.size(); ++i) {
        auto inputs = inputs_of(shape, DataType::kFloat32, kCounts[i]);
        expected.push_back(grid_reference(shape, pointers(inputs), kCounts[i], {}));
        data.push_back(std::move(inputs[static_cast<std::size_t>(me.rank())]));
      }
      for (std::size_t i = 0; i < kCounts.size(); ++i) {
        spans.push_back({.in = data[i].data(), .out = data[i].data(), .count = kCounts[i]});
      }
      me.expect_done(me.group.allreduce(spans, {}));
      ASSERT_EQ(data, expected) << name_of(shape);
    });
  }
}

TEST(GridGroup, members_that_joined_give_zeros_and_want_nothing) {
  constexpr std::array<std::size_t, 3> kCounts{300, 17, 2000};
  for (const GridShape& shape : {kShapes[0], kShapes[1], kShapes[2]}) {
    for (int joined = 0; joined < shape.size(); ++joined) {
      on_grid(shape, FaultPlan(2), [&](const GridRank& me) {
        const bool gone = me.rank() == joined;
        std::vector<Buffer> out;
        std::vector<Buffer> expected;
        std::vector<std::vector<Buffer>> inputs;
        std::vector<TensorSpan> spans;
        for (const std::size_t count : kCounts) {
          inputs.push_back(inputs_of(shape, DataType::kFloat16, count));
          auto given = pointers(inputs.back());
          given[static_cast<std::size_t>(joined)] = nullptr;
          expected.push_back(grid_reference(shape, given, count, {.dtype = DataType::kFloat16}));
          out.emplace_back(count * 2);
        }
        for (std::size_t i = 0; i < kCounts.size(); ++i) {
          const Buffer& own = inputs[i][static_cast<std::size_t>(me.rank())];
          spans.push_back({.in = gone ? nullptr : own.data(),
                           .out = gone ? nullptr : out[i].data(),
                           .count = kCounts[i]});
        }
        me.expect_done(me.group.allreduce(spans, {.dtype = DataType::kFloat16}));
        if (!gone) {
          ASSERT_EQ(out, expected) << name_of(shape) << ", without rank " << joined;
        }
      });
    }
  }
}

TEST(GridGroup, one_tensor_of_a_bucket_may_be_unwanted_and_another_missing) {
  constexpr std::size_t kCount = 400;
  const GridShape shape = kShapes[0];
  on_grid(shape, FaultPlan(2), [&](const GridRank& me) {
    auto inputs = inputs_of(shape, DataType::kFloat32, kCount);
    Buffer mine = inputs[static_cast<std::size_t>(me.rank())];
    Buffer out(mine.size());
    auto given = pointers(inputs);
    given[1] = nullptr;
    const bool first = me.rank() == 1;
    me.expect_done(me.group.allreduce(
        {{.in = mine.data(), .out = first ? nullptr : mine.data(), .count = kCount},
         {.in = first ? nullptr : inputs[static_cast<std::size_t>(me.rank())].data(),
          .out = out.data(),
          .count = kCount}},
        {}));
    ASSERT_EQ(mine, first ? inputs[1] : grid_reference(shape, pointers(inputs), kCount, {}));
    ASSERT_EQ(out, grid_reference(shape, given, kCount, {}));
  });
}

TEST(GridGroup, bits_do_not_depend_on_chunks_or_on_the_cutting_into_tensors) {
  constexpr std::size_t kCount = 3001;
  std::mutex mutex;
  std::set<Buffer> results;
  for (const std::size_t chunk_bytes : {64U, 512U, 5000U, 0U}) {
    for (const std::size_t cut : {std::size_t{0}, std::size_t{7}, std::size_t{1500}}) {
      const GridShape shape{.blocks = 3, .members = 2, .chunk_bytes = chunk_bytes};
      on_grid(shape, FaultPlan(chunk_bytes + 1).fragment(128), [&](const GridRank& me) {
        const auto inputs = inputs_of(shape, DataType::kBfloat16, kCount);
        Buffer data = inputs[static_cast<std::size_t>(me.rank())];
        Buffer copy(data.begin() + static_cast<std::ptrdiff_t>(cut * 2), data.end());
        me.expect_done(
            me.group.allreduce({{.in = data.data(), .out = data.data(), .count = cut},
                                {.in = copy.data(), .out = copy.data(), .count = kCount - cut}},
                               {.dtype = DataType::kBfloat16, .postscale = 1.0 / 6}));
        std::copy(copy.begin(), copy.end(), data.begin() + static_cast<std::ptrdiff_t>(cut * 2));
        const std::lock_guard<std::mutex> lock(mutex);
        results.insert(data);
      });
    }
  }
  EXPECT_EQ(results.size(), 1U);
}

TEST(GridGroup, many_operations_in_a_row_keep_their_order_on_bad_links) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const GridShape shape = kShapes[seed % 4];
    on_grid(shape, FaultPlan(seed).delay(5).fragment(128).capacity(1024), [&](const GridRank& me) {
      for (std::uint64_t round = 0; round < 60; ++round) {
        const std::size_t count = (round * 7919 + seed) % 1200;
        const auto inputs = inputs_of(shape, DataType::kInt32, count);
        Buffer data = inputs[static_cast<std::size_t>(me.rank())];
        me.expect_done(me.group.allreduce({{.in = data.data(), .out = data.data(), .count = count}},
                                          {.dtype = DataType::kInt32}));
        ASSERT_EQ(data, reference(pointers(inputs), count, {.dtype = DataType::kInt32}))
            << "seed " << seed << ", round " << round;
      }
    });
  }
}

TEST(GridGroup, larger_buckets_and_other_operations_are_left_to_the_flat_group) {
  GridShape shape{.blocks = 2, .members = 2, .max_bytes = 4000, .interleaved = true};
  on_grid(shape, FaultPlan(1), [&](const GridRank& me) {
    for (const std::size_t count : {std::size_t{1000}, std::size_t{1001}}) {
      const auto inputs = inputs_of(shape, DataType::kFloat32, count);
      Buffer data = inputs[static_cast<std::size_t>(me.rank())];
      me.expect_done(me.group.allreduce(
          {{.in = data.data(), .out = data.data(), .count = 500},
           {.in = data.data() + 2000, .out = data.data() + 2000, .count = count - 500}},
          {}));
      const Buffer flat = net_reference(pointers(inputs), count, {});
      const Buffer two_level = grid_reference(shape, pointers(inputs), count, {});
      ASSERT_NE(flat, two_level) << "the numbers do not tell the groups apart";
      ASSERT_EQ(data, count * 4 <= shape.max_bytes ? two_level : flat);
    }
    Buffer all(40);
    const Buffer own = pattern(10, static_cast<std::uint64_t>(me.rank()));
    me.expect_done(me.group.allgather(own.data(), all.data(), {10, 10, 10, 10}));
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const Buffer part(all.begin() + static_cast<std::ptrdiff_t>(10 * rank),
                        all.begin() + static_cast<std::ptrdiff_t>(10 * rank + 10));
      ASSERT_EQ(part, pattern(10, rank));
    }
    me.expect_done(me.group.barrier());
    EXPECT_EQ(me.run(me.group.allreduce({}, {.op = ReduceOp::kAdasum})).code(),
              ErrorCode::kInvalidArgument);
  });
}

TEST(GridGroup, a_member_sends_its_share_of_its_shards_and_no_more) {
  constexpr std::size_t kCount = std::size_t{6} * 65536;  // Divides evenly by all shapes.
  for (GridShape shape : {kShapes[0], kShapes[1], kShapes[2]}) {
    // Shards that are not small enough to be sent to everybody.
    shape.chunk_bytes = std::size_t{256} << 10;
    on_grid(shape, FaultPlan(1), [&](const GridRank& me) {
      Buffer data(kCount * 4);
      me.expect_done(
          me.group.allreduce({{.in = data.data(), .out = data.data(), .count = kCount}}, {}));
      const auto blocks = static_cast<double>(shape.blocks);
      const double formula = 2 * (blocks - 1) / blocks * kCount * 4 / shape.members;
      EXPECT_NEAR(static_cast<double>(me.transport.bytes_sent()), formula, formula / 50)
          << name_of(shape);
    });
  }
}

}  // namespace
}  // namespace lightcc::grid_group_test
