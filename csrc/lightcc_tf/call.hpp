// One step of one node: inputs in, an operation of the engine, outputs and TensorFlow's callback.
#pragma once

#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/tensor_ref.hpp"
#include "lightcc/engine/operation.hpp"
#include "lightcc/engine/world.hpp"

#include "attributes.hpp"
#include "done.hpp"
#include "tf_api.hpp"

namespace lightcc::tf {

/// Frees a tensor, which stays TensorFlow's as long as a step uses it.
struct TensorDeleter {
  void operator()(TfTensor* tensor) const { api().delete_tensor(tensor); }
};
using TensorPtr = std::unique_ptr<TfTensor, TensorDeleter>;

/// Ends a step with an error, in TensorFlow's codes.
void fail(KernelContext* context, const Status& error);
/// The error where there is no world; a failed precondition, since nothing is wrong with the node.
Status not_initialized();
/// Makes a new output. Errors: kSystem.
Result<TensorPtr> allocate(KernelContext* context,
                           int index,
                           TfType type,
                           const std::vector<std::int64_t>& shape,
                           std::size_t bytes);
/// Makes an output of int32 and fills it. Errors: kSystem.
Status write_int32(KernelContext* context,
                   int index,
                   const std::vector<std::int64_t>& shape,
                   const std::vector<std::int64_t>& values);

/// Starts what `collective` asks for; `done` runs when it has ended, on another thread, or at once
/// where it cannot be started. No thread waits for it. `collective` outlives the step.
void start_collective(const Collective& collective, KernelContext* context, Done done);

}  // namespace lightcc::tf
