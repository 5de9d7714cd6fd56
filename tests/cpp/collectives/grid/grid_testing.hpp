// What the tests of a grid share: m blocks of n members in one process, over a LoopbackHub and one
// piece of memory per block, or over the hub alone.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_group.hpp"
#include "lightcc/collectives/shm/shm_group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

#include "collectives/shm/shm_testing.hpp"
#include "doubles/fault_plan.hpp"
#include "doubles/loopback_transport.hpp"
#include "doubles/threads.hpp"

namespace lightcc::testing {

struct GridShape {
  int blocks = 2;
  int members = 2;  ///< Each block has so many.
  int exchanges = 2;
  std::size_t chunk_bytes = 512;
  std::size_t max_bytes = std::size_t{1} << 30;
  bool interleaved = false;  ///< Neighbouring ranks are in different blocks.
  bool shared = true;        ///< Blocks share memory; else the transport joins them, too.
  int size() const { return blocks * members; }
  int rank_of(int block, int member) const {
    return interleaved ? member * blocks + block : block * members + member;
  }
  int block_of(int rank) const { return interleaved ? rank % blocks : rank / members; }
  int member_of(int rank) const { return interleaved ? rank / blocks : rank % members; }
};

class GridWorld {
 public:
  explicit GridWorld(const GridShape& shape, const FaultPlan& plan = FaultPlan())
      : hub(plan), shape_(shape), shm_(tiny_options(shape.members, 2)) {
    for (int block = 0; block < shape.blocks; ++block) {
      memory_.push_back(std::make_unique<GroupMemory>(shm_group_bytes(shape.members, shm_)));
    }
  }

  const GridShape& shape() const { return shape_; }
  /// Thread: the one of the rank.
  std::unique_ptr<Group> make_group(int rank, Transport& transport) const {
    const int block = shape_.block_of(rank);
    const int position = shape_.member_of(rank);
    std::vector<int> all;
    std::vector<int> column;
    lightcc::GridShape rows{.rows = {}, .width = static_cast<std::size_t>(shape_.members)};
    for (int other = 0; other < shape_.size(); ++other) {
      all.push_back(other);
    }
    for (int other = 0; other < shape_.blocks; ++other) {
      column.push_back(shape_.rank_of(other, position));
      const std::vector<int> of_block = ranks_of(other);
      rows.rows.emplace_back(of_block.begin(), of_block.end());
    }
    GridLevels levels;
    if (shape_.interleaved) {
      levels.shape = std::move(rows);
    }
    levels.intra = shape_.shared ? make_shm_group(memory_[static_cast<std::size_t>(block)]->span(),
                                                  position,
                                                  silent_bells(shape_.members),
                                                  shm_)
                                 : net_group(transport, ranks_of(block), position, 99);
    for (int i = 0; i < shape_.exchanges; ++i) {
      levels.inter.push_back(
          net_group(transport, column, block, 100 + static_cast<std::uint32_t>(i)));
    }
    return make_grid_group(
        net_group(transport, all, rank, 0),
        make_grid_state(std::move(levels),
                        {.chunk_bytes = shape_.chunk_bytes, .max_bytes = shape_.max_bytes}));
  }

  LoopbackHub hub;

 private:
  std::vector<int> ranks_of(int block) const {
    std::vector<int> ranks;
    for (int member = 0; member < shape_.members; ++member) {
      ranks.push_back(shape_.rank_of(block, member));
    }
    return ranks;
  }
  static std::unique_ptr<Group> net_group(Transport& transport,
                                          const std::vector<int>& ranks,
                                          int own,
                                          std::uint32_t lane) {
    std::vector<NetMember> members;
    members.reserve(ranks.size());
    for (const int rank : ranks) {
      const auto number = static_cast<std::uint32_t>(rank);
      members.push_back({.world_rank = number, .handle = LoopbackHub::handle_of(number)});
    }
    return make_net_group(transport, std::move(members), own, 7, lane, {.chunk_bytes = 256});
  }

  GridShape shape_;
  ShmGroupOptions shm_;
  std::vector<std::unique_ptr<GroupMemory>> memory_;
};

/// One rank as its thread sees it.
struct GridRank {
  Group& group;
  Transport& transport;

  int rank() const { return group.rank(); }
  /// Drives `work` to its end. kTimeout after two minutes: nothing in these tests takes that long.
  Status run(std::unique_ptr<Work> work) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (std::chrono::steady_clock::now() < deadline) {
      const auto progress = work->advance();
      if (!progress.ok() || *progress == Progress::kDone) {
        return progress.status();
      }
      const auto polled = transport.poll();
      if (!polled.ok()) {
        return polled.status();
      }
      if (*progress == Progress::kIdle && !*polled) {
        ::sched_yield();
      }
    }
    return make_error(ErrorCode::kTimeout, "the operation does not end");
  }
  void expect_done(std::unique_ptr<Work> work) const {
    const Status status = run(std::move(work));
    EXPECT_TRUE(status.ok()) << status.message();
  }
};

/// Runs `body` on every rank of a fresh grid, each in its own thread.
inline void on_grid(const GridShape& shape,
                    const FaultPlan& plan,
                    const std::function<void(const GridRank&)>& body) {
  GridWorld world(shape, plan);
  // What a rank sent may still be on its way when it is done: all transports live to the end.
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < shape.size(); ++rank) {
    transports.push_back(world.hub.make_transport(static_cast<std::uint32_t>(rank)));
  }
  std::vector<std::unique_ptr<Group>> groups(transports.size());
  run_on_threads(transports.size(), [&](std::size_t rank) {
    groups[rank] = world.make_group(static_cast<int>(rank), *transports[rank]);
    body({*groups[rank], *transports[rank]});
  });
}

inline std::string name_of(const GridShape& shape) {
  return std::to_string(shape.blocks) + "x" + std::to_string(shape.members) +
         (shape.interleaved ? " interleaved" : "") + (shape.shared ? "" : " without memory");
}

/// What each rank brings.
inline std::vector<Buffer> inputs_of(const GridShape& shape, DataType dtype, std::size_t count) {
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < shape.size(); ++rank) {
    inputs.push_back(numbers(dtype, count, count * 31 + static_cast<std::uint64_t>(rank)));
  }
  return inputs;
}

inline std::vector<const Buffer*> pointers(const std::vector<Buffer>& buffers) {
  std::vector<const Buffer*> result;
  for (const Buffer& buffer : buffers) {
    result.push_back(&buffer);
  }
  return result;
}

using Contributions = std::vector<const Buffer*>;

inline Buffer net_reference(const Contributions& contributions,
                            std::size_t count,
                            const Reduction& reduction);

/// Each block in order with the prescale, then the blocks as the members of a NetGroup with the
/// postscale.
inline Buffer block_reference(const std::vector<Contributions>& blocks,
                              std::size_t count,
                              const Reduction& reduction) {
  // A sum of float16 could overflow before its average is taken.
  const bool early = reduction.dtype == DataType::kFloat16 && reduction.op == ReduceOp::kSum &&
                     reduction.postscale < 1.0;
  Reduction first = reduction;
  first.postscale = early ? reduction.postscale : 1.0;
  Reduction second = reduction;
  second.prescale = 1.0;
  second.postscale = early ? 1.0 : reduction.postscale;
  std::vector<Buffer> sums;
  sums.reserve(blocks.size());
  Contributions of_blocks;
  for (const Contributions& block : blocks) {
    of_blocks.push_back(&sums.emplace_back(reference(block, count, first)));
  }
  return net_reference(of_blocks, count, second);
}

/// What a NetGroup makes of its members' contributions (null: zeros).
inline Buffer net_reference(const Contributions& contributions,
                            std::size_t count,
                            const Reduction& reduction) {
  const std::size_t width = grid_width(contributions.size());
  if (width >= contributions.size()) {
    return reference(contributions, count, reduction);
  }
  std::vector<Contributions> rows;
  for (std::size_t i = 0; i < contributions.size(); ++i) {
    if (i % width == 0) {
      rows.emplace_back();
    }
    rows.back().push_back(contributions[i]);
  }
  return block_reference(rows, count, reduction);
}

/// What a grid makes of the ranks' contributions.
inline Buffer grid_reference(const GridShape& shape,
                             const Contributions& contributions,
                             std::size_t count,
                             const Reduction& reduction) {
  std::vector<Contributions> blocks(static_cast<std::size_t>(shape.blocks));
  for (int block = 0; block < shape.blocks; ++block) {
    for (int member = 0; member < shape.members; ++member) {
      blocks[static_cast<std::size_t>(block)].push_back(
          contributions[static_cast<std::size_t>(shape.rank_of(block, member))]);
    }
  }
  return block_reference(blocks, count, reduction);
}

}  // namespace lightcc::testing
