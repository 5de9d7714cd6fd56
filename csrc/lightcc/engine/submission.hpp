// What is wrong with a submission on this rank alone, before anything is started. The texts are
// Horovod's where it has one.
#pragma once

#include "lightcc/base/knobs.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/control/process_set_table.hpp"
#include "lightcc/engine/world.hpp"

namespace lightcc {

/// Checks `submission` and fills in what was left to default (even splits, names of barriers, joins
/// and process-set changes). `dynamic`: process sets may change now. Errors: kInvalidArgument,
/// kUnimplemented.
Status prepare_submission(
    Submission& submission, const ProcessSetTable& sets, int rank, int world_size, bool dynamic);

/// How a prepared `submission` is compressed, if it is: as it asks, or as the knobs say. Errors:
/// kInvalidArgument where it asks for what is not possible.
Result<std::optional<TopkSpec>> choose_compression(const Submission& submission,
                                                   const Knobs& knobs);

}  // namespace lightcc
