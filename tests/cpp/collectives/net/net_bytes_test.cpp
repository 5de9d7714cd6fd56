// The bytes that algorithms really send, against the formulas of docs/inside/algorithms.md.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

#include "collectives/net/net_world.hpp"

namespace lightcc::net_test::net_bytes_test {
namespace {

/// Bytes that each member sends during `start`.
std::vector<std::uint64_t> bytes_of(NetWorld& world, const NetWorld::Start& start) {
  std::vector<std::uint64_t> before;
  for (int i = 0; i < world.size(); ++i) {
    before.push_back(world.bytes_sent(i));
  }
  world.run_ok(start, "measured");
  std::vector<std::uint64_t> sent;
  for (int i = 0; i < world.size(); ++i) {
    sent.push_back(world.bytes_sent(i) - before[static_cast<std::size_t>(i)]);
  }
  return sent;
}

std::uint64_t total(const std::vector<std::uint64_t>& sent) {
  return std::accumulate(sent.begin(), sent.end(), std::uint64_t{0});
}

struct Buffers {
  Buffers(int members, std::size_t bytes)
      : in(static_cast<std::size_t>(members), std::vector<std::byte>(bytes)), out(in) {}
  std::byte* input(int member) { return in[static_cast<std::size_t>(member)].data(); }
  std::byte* output(int member) { return out[static_cast<std::size_t>(member)].data(); }
  std::vector<std::vector<std::byte>> in;
  std::vector<std::vector<std::byte>> out;
};

constexpr Reduction kSumOfBytes{.dtype = DataType::kUint8, .op = ReduceOp::kSum};

TEST(NetBytes, a_large_allreduce_sends_twice_its_share_of_n_minus_1_over_n) {
  for (const int size : kWorldSizes) {
    for (const std::size_t bytes : {std::size_t{300001}, std::size_t{400000}}) {
      // Pieces are so large that no column of the second level floods.
      NetWorld world(size, FaultPlan(1), {.chunk_bytes = 32768});
      Buffers buffers(size, bytes);
      const auto sent = bytes_of(world, [&](int member) {
        return world.group(member).allreduce(
            {{.in = buffers.input(member), .out = buffers.output(member), .count = bytes}},
            kSumOfBytes);
      });
      const auto n = static_cast<std::uint64_t>(size);
      const std::uint64_t bound = 2 * (n - 1) * bytes;
      if (size == 18) {  // Pieces that are small on the third level flood it.
        EXPECT_LE(total(sent), bound + bound / 15);
      } else {
        EXPECT_EQ(total(sent), bound) << size;
      }
      // What members own differs by at most two lines of 64 bytes, unless a row is shorter.
      const auto [minimum, maximum] = std::minmax_element(sent.begin(), sent.end());
      EXPECT_LE(*maximum - *minimum,
                size == 17   ? bytes / 2
                : size == 18 ? bytes / 8
                             : 128 * n)
          << size;
    }
  }
}

TEST(NetBytes, a_small_allreduce_sends_its_input_to_every_other_member_of_a_level) {
  for (const int size : {1, 2, 3, 5, 16}) {
    std::size_t others = 0;
    for (const std::size_t width : grid_widths(static_cast<std::size_t>(size))) {
      others += width - 1;
    }
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}}) {
      NetWorld world(size);
      Buffers buffers(size, bytes);
      const auto sent = bytes_of(world, [&](int member) {
        return world.group(member).allreduce(
            {{.in = buffers.input(member), .out = buffers.output(member), .count = bytes}},
            kSumOfBytes);
      });
      EXPECT_EQ(sent, std::vector<std::uint64_t>(sent.size(), others * bytes)) << size;
    }
  }
}

TEST(NetBytes, reduce_scatter_and_allgather_send_each_byte_once_to_every_member_but_one) {
  for (const int size : kWorldSizes) {
    NetWorld world(size);
    std::vector<std::size_t> counts;
    for (int i = 0; i < size; ++i) {
      counts.push_back(static_cast<std::size_t>(i * 1234 + 1));
    }
    const std::size_t bytes = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    Buffers buffers(size, bytes);
    const auto sent = bytes_of(world, [&](int member) {
      return world.group(member).reduce_scatter(
          buffers.input(member), buffers.output(member), counts, kSumOfBytes);
    });
    EXPECT_EQ(total(sent), static_cast<unsigned>(size - 1) * bytes) << size;
    const auto gathered = bytes_of(world, [&](int member) {
      return world.group(member).allgather(buffers.input(member), buffers.output(member), counts);
    });
    EXPECT_EQ(total(gathered), static_cast<unsigned>(size - 1) * bytes) << size;
    const bool one_row = grid_width(counts.size()) == counts.size();
    for (std::size_t i = 0; one_row && i < sent.size(); ++i) {
      EXPECT_EQ(sent[i], bytes - counts[i]) << size << " members, member " << i;
      EXPECT_EQ(gathered[i], (sent.size() - 1) * counts[i]) << size << " members, member " << i;
    }
  }
}

TEST(NetBytes, broadcast_sends_the_data_once_to_every_member_but_the_root) {
  for (const int size : kWorldSizes) {
    for (const std::size_t bytes :
         {std::size_t{1000}, std::size_t{40000} * static_cast<unsigned>(size)}) {
      NetWorld world(size, FaultPlan(1), {.chunk_bytes = 16384});
      Buffers buffers(size, bytes);
      const int root = size / 2;
      const auto sent = bytes_of(world, [&](int member) {
        return world.group(member).broadcast(buffers.input(member), bytes, root);
      });
      EXPECT_EQ(total(sent), static_cast<unsigned>(size - 1) * bytes);
      if (bytes > 1000) {
        EXPECT_LE(*std::max_element(sent.begin(), sent.end()), bytes) << "a chain";
      }
    }
  }
}

TEST(NetBytes, alltoall_sends_what_goes_to_others_and_a_barrier_nothing) {
  for (const int size : kWorldSizes) {
    NetWorld world(size);
    const std::vector<std::size_t> sizes(static_cast<std::size_t>(size), 5000);
    Buffers buffers(size, 5000 * sizes.size());
    const auto sent = bytes_of(world, [&](int member) {
      return world.group(member).alltoall(
          buffers.input(member), sizes, buffers.output(member), sizes);
    });
    EXPECT_EQ(sent,
              std::vector<std::uint64_t>(sent.size(), 5000 * static_cast<unsigned>(size - 1)));
    const auto silent = bytes_of(world, [&](int member) { return world.group(member).barrier(); });
    EXPECT_EQ(total(silent), 0U);
  }
}

}  // namespace
}  // namespace lightcc::net_test::net_bytes_test
