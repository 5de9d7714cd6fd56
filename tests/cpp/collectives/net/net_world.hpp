// Ranks in one thread for tests of NetGroup: a LoopbackHub, one Transport and Group per member, and
// a driver that advances their Works in random turns.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/net/net_group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

#include "doubles/fault_plan.hpp"
#include "doubles/loopback_transport.hpp"

namespace lightcc::net_test {

/// From 8 members on there are two levels, with 17 a shorter row, and with 18 three levels.
inline constexpr int kWorldSizes[] = {1, 2, 3, 4, 7, 8, 17, 18};
/// Turns without any movement after which nothing will move any more. Above every delay of a plan.
inline constexpr int kStuckTurns = 200;

inline std::uint32_t world_rank_of(int member) {
  return static_cast<std::uint32_t>(3 * member + 1);
}

/// Racks of several sizes in two zones, whose members have no neighbouring numbers.
inline std::vector<std::string> racks_of(int size) {
  std::vector<std::string> paths;
  for (int member = 0; member < size; ++member) {
    const int rack = member * member % 7;
    paths.push_back("zone" + std::to_string(rack % 2) + ".rack" + std::to_string(rack));
  }
  return paths;
}

/// `switches`: by member; empty: not told.
struct NetWorld {
  explicit NetWorld(int size,
                    const FaultPlan& plan = FaultPlan(),
                    const NetGroupOptions& options = {.chunk_bytes = 4096,
                                                      .level_chunk_bytes = 30000,
                                                      .narrow_bytes = 20000},
                    std::uint32_t lane = 0,
                    const std::vector<std::string>& switches = {})
      : seed(plan.seed()), hub(plan), random(plan.seed()) {
    std::vector<NetMember> members;
    for (int i = 0; i < size; ++i) {
      members.push_back(
          {.world_rank = world_rank_of(i),
           .handle = LoopbackHub::handle_of(world_rank_of(i)),
           .switches = switches.empty() ? "" : switches[static_cast<std::size_t>(i)]});
    }
    for (int i = 0; i < size; ++i) {
      transports.push_back(hub.make_transport(world_rank_of(i)));
      groups.push_back(make_net_group(*transports.back(), members, i, 5, lane, options));
    }
  }

  int size() const { return static_cast<int>(groups.size()); }
  Group& group(int member) { return *groups[static_cast<std::size_t>(member)]; }
  std::uint64_t bytes_sent(int member) const {
    return transports[static_cast<std::size_t>(member)]->bytes_sent();
  }

  using Start = std::function<std::unique_ptr<Work>(int member)>;

  /// Starts a Work on every member (null: takes no part) and drives them in random turns until all
  /// are over or nothing moves. Returns each member's status; kTimeout where it was left waiting.
  std::vector<Status> run(const Start& start) {
    works.clear();
    for (int i = 0; i < size(); ++i) {
      works.push_back(start(i));
    }
    std::vector<Status> outcome(works.size(), Status(ErrorCode::kTimeout, "left waiting"));
    std::vector<bool> over(works.size());
    for (std::size_t i = 0; i < works.size(); ++i) {
      if (works[i] == nullptr) {
        over[i] = true;
        outcome[i] = Status();
      }
    }
    const auto any = [&] { return static_cast<std::size_t>(random() % works.size()); };
    const int limit = kStuckTurns * size();
    for (int quiet = 0; quiet < limit; ++quiet) {
      const std::size_t i = any();
      if (transports[any()]->poll().value()) {
        quiet = 0;
      }
      if (over[i]) {
        continue;
      }
      const auto progress = works[i]->advance();
      if (!progress.ok() || progress.value() == Progress::kDone) {
        over[i] = true;
        outcome[i] = progress.status();
        works[i].reset();
      }
      if (!progress.ok() || progress.value() != Progress::kIdle) {
        quiet = 0;
      }
      if (std::all_of(over.begin(), over.end(), [](bool one) { return one; })) {
        break;
      }
    }
    return outcome;
  }

  /// run() in which everybody must succeed.
  void run_ok(const Start& start, const std::string& what) {
    const auto outcome = run(start);
    for (std::size_t i = 0; i < outcome.size(); ++i) {
      ASSERT_TRUE(outcome[i].ok())
          << what << ", seed " << seed << ", member " << i << ": " << outcome[i].message();
    }
  }

  std::uint64_t seed;
  LoopbackHub hub;
  std::mt19937_64 random;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<std::unique_ptr<Work>> works;
};

/// Writes a small non-negative whole number as element `index` of `dtype`; exact in every type.
inline void put_number(std::byte* data, DataType dtype, std::size_t index, unsigned value) {
  const auto store = [&](auto number) {
    std::memcpy(data + index * sizeof(number), &number, sizeof(number));
  };
  const auto single = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  switch (dtype) {
    case DataType::kUint8:
    case DataType::kInt8:
      store(static_cast<std::uint8_t>(value));
      break;
    case DataType::kBool:
      store(static_cast<std::uint8_t>(value != 0 ? 1 : 0));
      break;
    case DataType::kUint16:
    case DataType::kInt16:
      store(static_cast<std::uint16_t>(value));
      break;
    case DataType::kInt32:
      store(static_cast<std::uint32_t>(value));
      break;
    case DataType::kInt64:
      store(static_cast<std::uint64_t>(value));
      break;
    case DataType::kFloat16:
      // Exponent rebiased from 127 to 15, fraction cut from 23 to 10 bits: exact up to 2048.
      store(static_cast<std::uint16_t>(value == 0 ? 0 : (single >> 13) - ((127U - 15U) << 10)));
      break;
    case DataType::kBfloat16:
      store(static_cast<std::uint16_t>(single >> 16));
      break;
    case DataType::kFloat32:
      store(static_cast<float>(value));
      break;
    case DataType::kFloat64:
      store(static_cast<double>(value));
      break;
  }
}

}  // namespace lightcc::net_test
