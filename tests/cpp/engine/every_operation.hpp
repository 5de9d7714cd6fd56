// Collectives on numbers that differ by rank, for tests that compare two ways of running them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "engine/rank_threads.hpp"

namespace lightcc::testing {

using Numbers = std::vector<float>;

inline Numbers numbers_of(int rank, std::size_t count = 1000) {
  Numbers numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 31) % 97) - 40.0F;
  }
  return numbers;
}

/// Calls `body` with each kind of collective on `numbers_of(rank)`, and its name. All-reduces come
/// with three reductions; a broadcast is rank 2's.
inline void for_every_operation(
    int rank,
    const std::function<void(const std::string& name, const Operation& operation)>& body) {
  for (const OpType op : {OpType::kAllreduce,
                          OpType::kAllgather,
                          OpType::kBroadcast,
                          OpType::kAlltoall,
                          OpType::kReducescatter}) {
    for (const ReduceOp reduce : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kAdasum}) {
      if (reduce != ReduceOp::kAverage && op != OpType::kAllreduce) {
        continue;
      }
      const std::string name =
          std::string(op_type_name(op)) + "." + std::string(reduce_op_name(reduce));
      Numbers data = numbers_of(rank);
      Operation operation = operation_on(op, name, data);
      operation.request.signature.reduce_op = reduce;
      operation.request.signature.root_or_peer = op == OpType::kBroadcast ? 2 : -1;
      body(name, operation);
      EXPECT_EQ(data, numbers_of(rank)) << name << " changed its input";
    }
  }
}

}  // namespace lightcc::testing
