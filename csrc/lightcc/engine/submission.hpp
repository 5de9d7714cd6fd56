// What is wrong with an operation on this rank alone, before anything is started. The texts are
// Horovod's where it has one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lightcc/base/knobs.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/control/process_set_table.hpp"
#include "lightcc/engine/operation.hpp"

namespace lightcc {

/// What this rank knows when it checks an operation.
struct SubmissionContext {
  const ProcessSetTable& sets;
  int rank = 0;
  int world_size = 1;
  bool serves_cuda = false;  ///< Beside host memory.
};

/// The members of the operation's process set, which this rank is one of. Errors: kInvalidArgument.
Result<const std::vector<std::int32_t>*> find_members(const Operation& operation,
                                                      const SubmissionContext& context);

/// Checks `operation`, whose process set has `members`, and fills in what its input tells and what
/// was left to default (even splits). Errors: kInvalidArgument, kMismatch.
Status prepare_operation(Operation& operation,
                         const std::vector<std::int32_t>& members,
                         const SubmissionContext& context);

/// How a prepared `operation` of a set of so many members is compressed, if it is: as it asks, or
/// as the knobs say. Errors: kInvalidArgument where it asks for what is not possible.
Result<std::optional<CompressionSpec>> choose_compression(const Operation& operation,
                                                          std::size_t members,
                                                          const Knobs& knobs);

/// All of this for the operations of one call, which `context` is of. Errors: of these functions.
Status prepare_operations(std::vector<Operation>& operations,
                          const SubmissionContext& context,
                          const Knobs& knobs);

}  // namespace lightcc
