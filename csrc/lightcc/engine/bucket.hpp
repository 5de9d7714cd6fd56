// A bucket as one rank runs it: announced tensors matched with this rank's own operations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/engine/operation_table.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

struct BucketTensor {
  Signature signature;
  std::vector<std::int64_t> per_member;  ///< See AnnouncedTensor.
  Operation* operation = nullptr;        ///< Null: this rank has joined and contributes zeros.
  Outcome outcome;                       ///< What the operation will get.
};

struct Bucket {
  std::uint32_t process_set = 0;
  std::uint32_t lane = 0;
  std::vector<BucketTensor> tensors;  ///< At least one; all of one operation type.
};

/// Starts the bucket's collective on `group`, allocating outputs. `members` are the world ranks of
/// the group. Errors: kSystem when an output cannot be allocated.
Result<std::unique_ptr<Work>> start_bucket(Bucket& bucket,
                                           Group& group,
                                           const std::vector<std::int32_t>& members,
                                           SimdLevel simd);

}  // namespace lightcc
