// Allgather, broadcast, alltoall, send and receive, barrier over loopback.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

#include "collectives/net/net_world.hpp"
#include "doubles/fault_plan.hpp"

namespace lightcc::net_test::net_move_test {
namespace {

using Block = std::vector<std::byte>;

/// What member `from` sends to member `to` (or to all: -1).
Block block_of(int from, int to, std::size_t bytes) {
  Block block(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    block[i] =
        static_cast<std::byte>((i + i / 253 + static_cast<unsigned>(from * 37 + to * 11)) & 0xff);
  }
  return block;
}

std::vector<std::size_t> random_sizes(std::size_t count,
                                      std::size_t maximum,
                                      std::mt19937_64& random) {
  std::vector<std::size_t> sizes(count);
  for (std::size_t& size : sizes) {
    size = random() % 3 == 0 ? 0 : random() % (maximum + 1);
  }
  return sizes;
}

std::size_t sum(const std::vector<std::size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

FaultPlan rough(std::uint64_t seed) {
  return FaultPlan(seed).delay(3).fragment(256).capacity(900);
}

void check_allgather(NetWorld& world, const std::vector<std::size_t>& sizes, bool in_place) {
  Block wanted;
  std::vector<Block> inputs;
  std::vector<Block> outputs;
  std::vector<std::size_t> starts;
  for (int member = 0; member < world.size(); ++member) {
    inputs.push_back(block_of(member, -1, sizes[static_cast<std::size_t>(member)]));
    starts.push_back(wanted.size());
    wanted.insert(wanted.end(), inputs.back().begin(), inputs.back().end());
  }
  for (std::size_t member = 0; member < inputs.size(); ++member) {
    auto& output = outputs.emplace_back(wanted.size());
    if (in_place) {
      std::copy(inputs[member].begin(),
                inputs[member].end(),
                output.begin() + static_cast<std::ptrdiff_t>(starts[member]));
    }
  }
  world.run_ok(
      [&](int member) {
        const auto i = static_cast<std::size_t>(member);
        const std::byte* const in = in_place ? outputs[i].data() + starts[i] : inputs[i].data();
        return world.group(member).allgather(in, outputs[i].data(), sizes);
      },
      "allgather");
  for (const Block& output : outputs) {
    ASSERT_TRUE(output == wanted) << world.size() << " members";
  }
}

TEST(NetAllgather, blocks_of_any_size_reach_everyone_in_place_and_not) {
  for (const int size : kWorldSizes) {
    std::mt19937_64 random(static_cast<unsigned>(size));
    NetWorld world(size, rough(static_cast<unsigned>(size)), {.chunk_bytes = 512});
    for (const std::size_t maximum : {0U, 1U, 511U, 5000U}) {
      check_allgather(world, random_sizes(static_cast<std::size_t>(size), maximum, random), false);
      check_allgather(world, random_sizes(static_cast<std::size_t>(size), maximum, random), true);
      check_allgather(
          world, std::vector<std::size_t>(static_cast<std::size_t>(size), maximum), true);
    }
  }
}

TEST(NetAllgather, levels_with_one_large_block_and_empty_ones_does_not_lock) {
  for (std::size_t big = 0; big < 17; big += 4) {
    NetWorld world(17, FaultPlan(big).capacity(64), {.chunk_bytes = 8192});
    std::vector<std::size_t> sizes(17);
    sizes[big] = 200000;
    sizes[(big + 5) % 17] = 1;
    check_allgather(world, sizes, false);
  }
}

TEST(NetBroadcast, a_large_one_goes_down_levels_where_a_chain_would_be_long) {
  const std::size_t bytes = 67 * 33000;
  NetWorld world(67, FaultPlan(8), {.chunk_bytes = 65536, .level_chunk_bytes = 500000});
  for (const int root : {0, 30, 66}) {
    const Block wanted = block_of(root, -1, bytes);
    std::vector<Block> data(67, Block(bytes));
    data[static_cast<std::size_t>(root)] = wanted;
    std::vector<std::uint64_t> before;
    for (int member = 0; member < 67; ++member) {
      before.push_back(world.bytes_sent(member));
    }
    world.run_ok(
        [&](int member) {
          return world.group(member).broadcast(
              data[static_cast<std::size_t>(member)].data(), bytes, root);
        },
        "broadcast");
    for (int member = 0; member < 67; ++member) {
      const auto i = static_cast<std::size_t>(member);
      ASSERT_TRUE(data[i] == wanted) << "root " << root << ", member " << member;
      EXPECT_LE(world.bytes_sent(member) - before[i], 3 * bytes) << "root " << root;
    }
  }
}

TEST(NetBroadcast, every_root_reaches_every_member_by_tree_and_by_chain) {
  for (const int size : kWorldSizes) {
    // Above 32 KiB for each member it is a chain.
    for (const std::size_t bytes : {std::size_t{0},
                                    std::size_t{1},
                                    std::size_t{511},
                                    std::size_t{513},
                                    std::size_t{5000},
                                    std::size_t{33000} * static_cast<unsigned>(size)}) {
      NetWorld world(size,
                     bytes > 5000 ? FaultPlan(3).capacity(20000) : rough(3),
                     {.chunk_bytes = bytes > 5000 ? std::size_t{16384} : std::size_t{512}});
      const int step = bytes > 5000 && size > 5 ? 5 : 1;
      for (int root = 0; root < size; root += step) {
        const Block wanted = block_of(root, -1, bytes);
        std::vector<Block> data(static_cast<std::size_t>(size), Block(bytes));
        data[static_cast<std::size_t>(root)] = wanted;
        world.run_ok(
            [&](int member) {
              return world.group(member).broadcast(
                  data[static_cast<std::size_t>(member)].data(), bytes, root);
            },
            "broadcast");
        for (const Block& got : data) {
          ASSERT_TRUE(got == wanted) << size << " members, root " << root << ", " << bytes;
        }
      }
    }
  }
}

TEST(NetAlltoall, uneven_blocks_reach_their_members) {
  for (const int size : kWorldSizes) {
    const auto n = static_cast<std::size_t>(size);
    std::mt19937_64 random(n);
    NetWorld world(size, rough(n), {.chunk_bytes = 512});
    for (const std::size_t maximum : {0U, 3U, 513U, 4000U}) {
      std::vector<std::vector<std::size_t>> sizes;  // [from][to]
      for (std::size_t from = 0; from < n; ++from) {
        sizes.push_back(random_sizes(n, maximum, random));
      }
      std::vector<Block> inputs(n);
      std::vector<Block> wanted(n);
      std::vector<Block> outputs(n);
      std::vector<std::vector<std::size_t>> arriving(n);
      for (std::size_t from = 0; from < n; ++from) {
        for (std::size_t to = 0; to < n; ++to) {
          const Block block =
              block_of(static_cast<int>(from), static_cast<int>(to), sizes[from][to]);
          inputs[from].insert(inputs[from].end(), block.begin(), block.end());
          wanted[to].insert(wanted[to].end(), block.begin(), block.end());
          arriving[to].push_back(sizes[from][to]);
        }
      }
      for (std::size_t i = 0; i < n; ++i) {
        outputs[i].resize(sum(arriving[i]));
      }
      world.run_ok(
          [&](int member) {
            const auto i = static_cast<std::size_t>(member);
            return world.group(member).alltoall(
                inputs[i].data(), sizes[i], outputs[i].data(), arriving[i]);
          },
          "alltoall");
      ASSERT_TRUE(outputs == wanted) << size << " members, up to " << maximum;
    }
  }
}

TEST(NetPoint, two_members_exchange_while_others_do_nothing) {
  NetWorld world(5, rough(8), {.chunk_bytes = 512});
  for (const std::size_t bytes : {0U, 1U, 512U, 10000U}) {
    const Block sent = block_of(1, 3, bytes);
    Block received(bytes);
    world.run_ok(
        [&](int member) -> std::unique_ptr<Work> {
          if (member == 1) {
            return world.group(1).send(sent.data(), bytes, 3);
          }
          return member == 3 ? world.group(3).recv(received.data(), bytes, 1) : nullptr;
        },
        "send");
    ASSERT_TRUE(received == sent);
  }
}

TEST(NetPoint, wrong_arguments_are_refused_and_the_group_goes_on) {
  NetWorld world(3);
  Block data(8);
  const auto code = [](std::unique_ptr<Work> work) { return work->advance().status().code(); };
  Group& group = world.group(0);
  EXPECT_EQ(code(group.send(data.data(), 1, 0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(group.send(data.data(), 1, 3)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(group.recv(data.data(), 1, -1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(group.broadcast(data.data(), 1, 3)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(group.allgather(data.data(), data.data(), {1, 2})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(group.allgather(data.data(), data.data(), {SIZE_MAX, 1, 1})),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(group.alltoall(data.data(), {1, 1, 1}, data.data(), {2, 1, 1})),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(group.reduce_scatter(data.data(), data.data(), {1, 1}, {})),
            ErrorCode::kInvalidArgument);
  world.run_ok([&](int member) { return world.group(member).barrier(); }, "barrier");
}

TEST(NetBarrier, nobody_leaves_before_the_last_has_come) {
  for (const int size : kWorldSizes) {
    NetWorld world(size, FaultPlan(5).delay(2));
    for (int last = 0; last < size; last += 3) {
      std::vector<std::unique_ptr<Work>> works(static_cast<std::size_t>(size));
      std::vector<bool> left(static_cast<std::size_t>(size));
      const auto turns = [&] {
        for (int turn = 0; turn < 400; ++turn) {
          for (std::size_t i = 0; i < works.size(); ++i) {
            ASSERT_TRUE(world.transports[i]->poll().ok());
            if (works[i] != nullptr && !left[i]) {
              const auto progress = works[i]->advance();
              ASSERT_TRUE(progress.ok());
              left[i] = progress.value() == Progress::kDone;
            }
          }
        }
      };
      for (int i = 0; i < size; ++i) {
        if (i != last) {
          works[static_cast<std::size_t>(i)] = world.group(i).barrier();
        }
      }
      turns();
      EXPECT_EQ(left, std::vector<bool>(left.size(), false));
      works[static_cast<std::size_t>(last)] = world.group(last).barrier();
      turns();
      EXPECT_EQ(left, std::vector<bool>(left.size(), true));
    }
  }
}

}  // namespace
}  // namespace lightcc::net_test::net_move_test
