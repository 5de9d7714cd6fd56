// Every operation of ShmGroup, with ranks as threads, at the seams of shares, slots, rounds and
// windows.

#include "lightcc/collectives/shm/shm_group.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/shm/shm_testing.hpp"

namespace lightcc::shm_group_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

constexpr int kSizes[] = {1, 2, 3, 4, 5, 8};

/// Counts around members, shares of 64 bytes, rounds and the depth of a window, for float32.
std::vector<std::size_t> seams(int size) {
  const auto n = static_cast<std::size_t>(size);
  const std::size_t round = n * 16;
  std::vector<std::size_t> counts = {0, 1, n + 1, 15, 16, 17, round - 1, round, round + 1};
  counts.insert(counts.end(), {n, n - 1, 3 * round + 5, 4 * round, 11 * round - 1});
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

std::vector<Buffer> inputs_of(int size, DataType dtype, std::size_t count, std::uint64_t seed) {
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(numbers(dtype, count, seed + static_cast<std::uint64_t>(rank)));
  }
  return inputs;
}

std::vector<const Buffer*> pointers(const std::vector<Buffer>& buffers) {
  std::vector<const Buffer*> result;
  for (const Buffer& buffer : buffers) {
    result.push_back(&buffer);
  }
  return result;
}

Buffer allreduced(Group& group, Buffer data, std::size_t count, const Reduction& reduction) {
  expect_done(group.allreduce({{data.data(), data.data(), count}}, reduction));
  return data;
}

TEST(ShmGroup, allreduce_equals_the_sequential_reference_at_every_seam) {
  for (const int size : kSizes) {
    for (const int depth : {1, 2, 3, 4}) {
      for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
        ShmGroupOptions options = tiny_options(size, depth);
        options.direct_bytes = direct;
        on_threads(size, options, [&](Group& group) {
          for (const std::size_t count : seams(size)) {
            const auto inputs = inputs_of(size, DataType::kFloat32, count, count);
            const Buffer expected = reference(pointers(inputs), count, {});
            const Buffer& mine = inputs[static_cast<std::size_t>(group.rank())];
            ASSERT_EQ(allreduced(group, mine, count, {}), expected)
                << size << " ranks, depth " << depth << ", " << count << " elements";
            Buffer out(mine.size());
            expect_done(group.allreduce({{mine.data(), out.data(), count}}, {}));
            ASSERT_EQ(out, expected);
          }
        });
      }
    }
  }
}

TEST(ShmGroup, the_halves_of_an_allreduce_work_on_the_tensors_of_a_bucket) {
  for (const int size : kSizes) {
    on_threads(size, tiny_options(size, 2), [&](Group& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      for (const std::size_t count : seams(size)) {
        // Parts of any size, over tensors of other sizes.
        std::vector<std::size_t> parts(static_cast<std::size_t>(size), 0);
        for (std::size_t i = 0; i < count; ++i) {
          ++parts[(i / 7) % parts.size()];
        }
        const auto inputs = inputs_of(size, DataType::kFloat32, count, count);
        const Buffer expected = reference(pointers(inputs), count, {});
        Buffer data = inputs[rank];
        const std::size_t cut = count / 3 * 4;
        const std::vector<TensorSpan> tensors = {
            {.in = data.data(), .out = data.data(), .count = cut / 4},
            {.in = data.data(), .out = data.data(), .count = 0},
            {.in = data.data() + cut, .out = data.data() + cut, .count = count - cut / 4}};
        expect_done(group.reduce_scatter_bucket(tensors, parts, {}));
        std::size_t first = 0;
        for (std::size_t member = 0; member < parts.size(); ++member) {
          const Buffer& right = member == rank ? expected : inputs[rank];
          ASSERT_TRUE(
              std::equal(data.begin() + static_cast<std::ptrdiff_t>(first),
                         data.begin() + static_cast<std::ptrdiff_t>(first + parts[member] * 4),
                         right.begin() + static_cast<std::ptrdiff_t>(first)))
              << size << " ranks, " << count << " elements, the part of " << member;
          first += parts[member] * 4;
        }
        expect_done(group.allgather_bucket(tensors, parts, DataType::kFloat32));
        ASSERT_EQ(data, expected) << size << " ranks, " << count << " elements";
      }
    });
  }
}

TEST(ShmGroup, a_gather_leaves_alone_what_a_member_does_not_want) {
  on_threads(2, tiny_options(2, 2), [&](Group& group) {
    Buffer own(200, static_cast<std::byte>(group.rank() + 1));
    Buffer out(400, std::byte{9});
    const bool first = group.rank() == 0;
    std::vector<TensorSpan> tensors = {{.in = own.data(), .out = nullptr, .count = 200},
                                       {.in = nullptr, .out = out.data() + 200, .count = 200}};
    if (!first) {
      tensors = {{.in = nullptr, .out = nullptr, .count = 200},
                 {.in = own.data(), .out = out.data() + 200, .count = 200}};
    }
    expect_done(group.allgather_bucket(tensors, {200, 200}, DataType::kUint8));
    ASSERT_EQ(Buffer(out.begin(), out.begin() + 200), Buffer(200, std::byte{9}));
    ASSERT_EQ(Buffer(out.begin() + 200, out.end()), Buffer(200, std::byte{2}));
  });
}

TEST(ShmGroup, parts_that_are_not_the_tensors_are_refused) {
  on_threads(1, tiny_options(1, 1), [&](Group& group) {
    Buffer data(40);
    const TensorSpan tensor{.in = data.data(), .out = data.data(), .count = 10};
    for (const std::vector<std::size_t>& parts : {std::vector<std::size_t>{9}, {10, 0}, {}}) {
      EXPECT_EQ(testing::run(group.reduce_scatter_bucket({tensor}, parts, {})).code(),
                ErrorCode::kInvalidArgument);
      EXPECT_EQ(testing::run(group.allgather_bucket({tensor}, parts, DataType::kFloat32)).code(),
                ErrorCode::kInvalidArgument);
    }
  });
}

TEST(ShmGroup, allreduce_covers_all_types_and_operators_with_factors) {
  for (const int size : {2, 3}) {
    for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
      ShmGroupOptions options = tiny_options(size, 2);
      options.direct_bytes = direct;
      on_threads(size, options, [&](Group& group) {
        for (std::uint8_t type = 0; type < kDataTypeCount; ++type) {
          for (const ReduceOp op :
               {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
            const auto dtype = static_cast<DataType>(type);
            if (!is_reducible(dtype, op)) {
              continue;
            }
            for (const double factor : {1.0, 0.5}) {
              const Reduction reduction{dtype, op, factor, 1.0 / 3.0};
              const auto inputs = inputs_of(size, dtype, 77, type);
              ASSERT_EQ(
                  allreduced(group, inputs[static_cast<std::size_t>(group.rank())], 77, reduction),
                  reference(pointers(inputs), 77, reduction))
                  << data_type_name(dtype) << " " << reduce_op_name(op);
            }
          }
        }
      });
    }
  }
}

TEST(ShmGroup, allreduce_takes_a_bucket_of_many_odd_spans) {
  const std::vector<std::size_t> counts = {1, 0, 3, 64, 17, 1, 1, 0, 255, 5, 33, 128, 2, 0};
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  for (const int size : {1, 2, 3, 5}) {
    for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
      ShmGroupOptions options = tiny_options(size, 3);
      options.direct_bytes = direct;
      on_threads(size, options, [&](Group& group) {
        const auto inputs = inputs_of(size, DataType::kFloat32, total, 5);
        const Buffer expected = reference(pointers(inputs), total, {});
        const Buffer& mine = inputs[static_cast<std::size_t>(group.rank())];
        // Separate, oddly aligned tensors; every other one in place.
        std::vector<Buffer> tensors;
        std::vector<Buffer> outs;
        std::vector<TensorSpan> spans;
        std::size_t start = 0;
        for (std::size_t i = 0; i < counts.size(); ++i) {
          tensors.emplace_back(mine.begin() + static_cast<std::ptrdiff_t>(start * 4),
                               mine.begin() + static_cast<std::ptrdiff_t>((start + counts[i]) * 4));
          outs.emplace_back(counts[i] * 4);
          start += counts[i];
        }
        for (std::size_t i = 0; i < counts.size(); ++i) {
          spans.push_back(
              {tensors[i].data(), i % 2 == 0 ? tensors[i].data() : outs[i].data(), counts[i]});
        }
        expect_done(group.allreduce(spans, {}));
        Buffer joined;
        for (std::size_t i = 0; i < counts.size(); ++i) {
          const Buffer& from = i % 2 == 0 ? tensors[i] : outs[i];
          joined.insert(joined.end(), from.begin(), from.end());
        }
        ASSERT_EQ(joined, expected);
      });
    }
  }
}

TEST(ShmGroup, a_null_input_counts_as_zeros_and_a_null_output_is_not_written) {
  for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
    ShmGroupOptions options = tiny_options(3, 2);
    options.direct_bytes = direct;
    on_threads(3, options, [&](Group& group) {
      const auto inputs = inputs_of(3, DataType::kFloat32, 200, 9);
      const Buffer expected = reference({&inputs[0], nullptr, &inputs[2]}, 200, {});
      Buffer out(800);
      TensorSpan span{inputs[static_cast<std::size_t>(group.rank())].data(), out.data(), 200};
      if (group.rank() == 1) {
        span.in = nullptr;
      } else if (group.rank() == 2) {
        span.out = nullptr;
      }
      expect_done(group.allreduce({span}, {}));
      ASSERT_EQ(out, group.rank() == 2 ? Buffer(800) : expected);
      // The same joined rank in a reduce_scatter.
      out.assign(800, {});
      expect_done(group.reduce_scatter(span.in, out.data(), {60, 80, 60}, {}));
      const std::size_t starts[] = {0, 60, 140, 200};
      const auto rank = static_cast<std::size_t>(group.rank());
      ASSERT_TRUE(std::equal(expected.begin() + static_cast<std::ptrdiff_t>(starts[rank] * 4),
                             expected.begin() + static_cast<std::ptrdiff_t>(starts[rank + 1] * 4),
                             out.begin()));
    });
  }
}

/// Uneven blocks, some empty.
std::vector<std::vector<std::size_t>> block_lists(int size) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::vector<std::size_t>> lists(5, std::vector<std::size_t>(n));
  for (std::size_t k = 0; k < n; ++k) {
    lists[0][k] = 0;
    lists[1][k] = 16;
    lists[2][k] = k;
    lists[3][k] = k % 2 == 0 ? 0 : 131;
    lists[4][k] = (k * 7919 + 13) % 300;
  }
  return lists;
}

TEST(ShmGroup, reduce_scatter_gives_each_member_its_uneven_block) {
  for (const int size : kSizes) {
    for (const int depth : {1, 2, 4}) {
      on_threads(size, tiny_options(size, depth), [&](Group& group) {
        for (const auto& counts : block_lists(size)) {
          const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
          const auto inputs = inputs_of(size, DataType::kFloat32, total, 3);
          const Buffer expected = reference(pointers(inputs), total, {});
          const auto rank = static_cast<std::size_t>(group.rank());
          const auto start = static_cast<std::ptrdiff_t>(
              std::accumulate(counts.begin(), counts.begin() + group.rank(), std::size_t{0}) * 4);
          Buffer out(counts[rank] * 4);
          expect_done(group.reduce_scatter(inputs[rank].data(), out.data(), counts, {}));
          ASSERT_TRUE(std::equal(out.begin(), out.end(), expected.begin() + start));
        }
      });
    }
  }
}

TEST(ShmGroup, allgather_concatenates_uneven_blocks_from_outside_and_in_place) {
  for (const int size : kSizes) {
    for (const int depth : {1, 2, 4}) {
      on_threads(size, tiny_options(size, depth), [&](Group& group) {
        for (const auto& bytes : block_lists(size)) {
          Buffer expected;
          std::vector<Buffer> blocks;
          std::size_t own_start = 0;
          for (std::size_t k = 0; k < bytes.size(); ++k) {
            own_start = static_cast<int>(k) == group.rank() ? expected.size() : own_start;
            blocks.push_back(pattern(bytes[k], k));
            expected.insert(expected.end(), blocks[k].begin(), blocks[k].end());
          }
          const Buffer& mine = blocks[static_cast<std::size_t>(group.rank())];
          Buffer out(expected.size());
          expect_done(group.allgather(mine.data(), out.data(), bytes));
          ASSERT_EQ(out, expected);
          Buffer position(expected.size());
          std::copy(
              mine.begin(), mine.end(), position.begin() + static_cast<std::ptrdiff_t>(own_start));
          expect_done(group.allgather(position.data() + own_start, position.data(), bytes));
          ASSERT_EQ(position, expected);
        }
      });
    }
  }
}

TEST(ShmGroup, broadcast_reaches_all_from_every_root) {
  for (const int size : kSizes) {
    for (const int depth : {1, 3}) {
      on_threads(size, tiny_options(size, depth), [&](Group& group) {
        for (int root = 0; root < size; ++root) {
          for (const std::size_t bytes : {0U, 1U, 63U, 64U, 65U, 1000U}) {
            const Buffer expected = pattern(bytes, bytes + static_cast<std::size_t>(root));
            Buffer data = group.rank() == root ? expected : Buffer(bytes);
            expect_done(group.broadcast(data.data(), bytes, root));
            ASSERT_EQ(data, expected);
          }
        }
      });
    }
  }
}

/// What `from` sends to `to`.
std::size_t block_bytes(std::size_t from, std::size_t to) {
  return (from * 37 + to * 101) % 290;
}

TEST(ShmGroup, alltoall_delivers_every_uneven_block) {
  for (const int size : kSizes) {
    for (const int depth : {1, 2, 4}) {
      on_threads(size, tiny_options(size, depth), [&](Group& group) {
        const auto n = static_cast<std::size_t>(size);
        const auto rank = static_cast<std::size_t>(group.rank());
        Buffer in;
        Buffer expected;
        std::vector<std::size_t> send_bytes;
        std::vector<std::size_t> recv_bytes;
        for (std::size_t k = 0; k < n; ++k) {
          const Buffer to = pattern(block_bytes(rank, k), rank * n + k);
          const Buffer from = pattern(block_bytes(k, rank), k * n + rank);
          send_bytes.push_back(to.size());
          recv_bytes.push_back(from.size());
          in.insert(in.end(), to.begin(), to.end());
          expected.insert(expected.end(), from.begin(), from.end());
        }
        Buffer out(expected.size());
        expect_done(group.alltoall(in.data(), send_bytes, out.data(), recv_bytes));
        ASSERT_EQ(out, expected);
      });
    }
  }
}

TEST(ShmGroup, send_and_recv_involve_two_members_only) {
  on_threads(5, tiny_options(5, 2), [](Group& group) {
    // A ring of messages; the last member receives first, so that nobody waits in a circle.
    const int next = (group.rank() + 1) % 5;
    const int before = (group.rank() + 4) % 5;
    for (const std::size_t bytes : {0U, 1U, 64U, 65U, 777U}) {
      const Buffer out = pattern(bytes, static_cast<std::uint64_t>(group.rank()));
      Buffer in(bytes);
      if (group.rank() == 4) {
        expect_done(group.recv(in.data(), bytes, before));
        expect_done(group.send(out.data(), bytes, next));
      } else {
        expect_done(group.send(out.data(), bytes, next));
        expect_done(group.recv(in.data(), bytes, before));
      }
      ASSERT_EQ(in, pattern(bytes, static_cast<std::uint64_t>(before)));
    }
  });
}

TEST(ShmGroup, default_options_give_the_same_bits_as_tiny_rounds) {
  for (const int size : {2, 3, 4}) {
    constexpr std::size_t kCount = 300'001;
    const auto inputs = inputs_of(size, DataType::kFloat32, kCount, 1);
    const Buffer expected = reference(pointers(inputs), kCount, {});
    ShmGroupOptions options = default_shm_options(size);
    options.simd = detect_simd_level();
    for (const ShmGroupOptions& chosen : {options, tiny_options(size, 4)}) {
      on_threads(size, chosen, [&](Group& group) {
        const Buffer& mine = inputs[static_cast<std::size_t>(group.rank())];
        ASSERT_TRUE(allreduced(group, mine, kCount, {}) == expected);
      });
    }
  }
}

}  // namespace
}  // namespace lightcc::shm_group_test
