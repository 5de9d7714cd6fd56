#include "call.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "lightcc/engine/current_world.hpp"

namespace lightcc::tf {
namespace {

std::optional<DataType> to_data_type(TfType type) {
  switch (type) {
    case TfType::kFloat:
      return DataType::kFloat32;
    case TfType::kDouble:
      return DataType::kFloat64;
    case TfType::kInt32:
      return DataType::kInt32;
    case TfType::kUint8:
      return DataType::kUint8;
    case TfType::kInt16:
      return DataType::kInt16;
    case TfType::kInt8:
      return DataType::kInt8;
    case TfType::kInt64:
      return DataType::kInt64;
    case TfType::kBool:
      return DataType::kBool;
    case TfType::kBfloat16:
      return DataType::kBfloat16;
    case TfType::kUint16:
      return DataType::kUint16;
    case TfType::kHalf:
      return DataType::kFloat16;
  }
  return std::nullopt;
}

// As Horovod's operations: what ranks disagree about is a failed precondition, and what ended the
// world aborts the step.
TfCode to_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return TfCode::kOk;
    case ErrorCode::kInvalidArgument:
      return TfCode::kInvalidArgument;
    case ErrorCode::kMismatch:
      return TfCode::kFailedPrecondition;
    case ErrorCode::kPeerFailed:
    case ErrorCode::kTimeout:
    case ErrorCode::kShutDown:
      return TfCode::kAborted;
    case ErrorCode::kUnimplemented:
      return TfCode::kUnimplemented;
    case ErrorCode::kSystem:
    case ErrorCode::kInternal:
      return TfCode::kInternal;
  }
  return TfCode::kUnknown;
}

std::vector<std::int64_t> shape_of(const TfTensor* tensor) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(api().dimension_count(tensor)));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    shape[i] = api().dimension(tensor, static_cast<int>(i));
  }
  return shape;
}

Result<TensorPtr> get_input(KernelContext* context, int index) {
  CallStatus status;
  TfTensor* tensor = nullptr;
  api().get_input(context, index, &tensor, status.get());
  LIGHTCC_RETURN_IF_ERROR(status.to_status("TensorFlow gave no input"));
  return TensorPtr(tensor);
}

Result<TensorRef> refer_to(const TfTensor* tensor) {
  const std::optional<DataType> dtype = to_data_type(api().tensor_type(tensor));
  if (!dtype) {
    return make_error(ErrorCode::kInvalidArgument, "Tensor type is not supported.");
  }
  return TensorRef{
      .data = api().tensor_data(tensor), .dtype = *dtype, .shape = shape_of(tensor), .memory = {}};
}

// Whether an output has its input's shape, so that it may be the input's memory.
constexpr bool is_in_place(OpType op) {
  return op == OpType::kAllreduce || op == OpType::kBroadcast;
}

Result<std::vector<std::int64_t>> read_splits(KernelContext* context, int index) {
  LIGHTCC_ASSIGN_OR_RETURN(const TensorPtr tensor, get_input(context, index));
  if (api().dimension_count(tensor.get()) != 1) {
    return make_error(ErrorCode::kInvalidArgument, "alltoall expects a 1D splits tensor");
  }
  std::vector<std::int32_t> splits(static_cast<std::size_t>(api().dimension(tensor.get(), 0)));
  if (!splits.empty()) {
    std::memcpy(splits.data(), api().tensor_data(tensor.get()), splits.size() * sizeof(splits[0]));
  }
  return std::vector<std::int64_t>(splits.begin(), splits.end());
}

// A row for each of `operations`: bits and the share of top-k (ops.cpp).
Status read_ways(KernelContext* context, int index, std::vector<Operation>& operations) {
  LIGHTCC_ASSIGN_OR_RETURN(const TensorPtr tensor, get_input(context, index));
  if (shape_of(tensor.get()) !=
      std::vector<std::int64_t>{static_cast<std::int64_t>(operations.size()), 2}) {
    return make_error(ErrorCode::kInvalidArgument,
                      "ways does not have two numbers for each of %zu tensors",
                      operations.size());
  }
  std::vector<double> ways(operations.size() * 2);
  std::memcpy(ways.data(), api().tensor_data(tensor.get()), ways.size() * sizeof(double));
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const double bits = ways[2 * i];
    const double ratio = ways[2 * i + 1];
    if (bits == 0.0 && ratio == 0.0) {
      continue;
    }
    CompressionSpec spec{.ratio = ratio};
    if (bits != 0.0) {
      const bool is_known = bits == 8.0 || bits == 4.0;
      spec = {.compressor = compressor_of(is_known ? static_cast<std::int64_t>(bits) : 0)};
    }
    if (!spec.is_valid() || (bits != 0.0 && !spec.is_quantized())) {
      return make_error(ErrorCode::kInvalidArgument,
                        "ways has %g bits and a ratio of %g: allowed are 8 or 4 bits, or a ratio "
                        "above 0 and at most 1",
                        bits,
                        ratio);
    }
    operations[i].request.signature.compression = spec;
  }
  return {};
}

class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(const Collective& collective, KernelContext* context, Done done)
      : collective_(collective), context_(context), done_(std::move(done)) {}

  /// Submits; finish() follows. Errors: at once, and finish() does not follow.
  Status start();
  /// Ends the step.
  void finish(const Result<std::vector<Outcome>>& result);

 private:
  Result<std::vector<Operation>> make_operations();
  Status take_in_place(int index, Operation& operation);
  Status take(int index, Operation& operation);
  Status write_results(const std::vector<Outcome>& outcomes);

  const Collective& collective_;
  KernelContext* context_;
  Done done_;
  std::vector<TensorPtr> tensors_;  ///< What must stay until the operation is done.
  std::vector<TensorPtr> outputs_;  ///< By index; made when their shapes are known.
};

// The input's memory is the output's where nobody else holds it; the reference that get_input()
// takes would be such a holder.
Status Call::take_in_place(int index, Operation& operation) {
  LIGHTCC_ASSIGN_OR_RETURN(TensorPtr input, get_input(context_, index));
  const std::vector<std::int64_t> shape = shape_of(input.get());
  input.reset();
  CallStatus status;
  int forwarded = -1;
  TensorPtr output(api().forward_or_allocate(context_,
                                             &index,
                                             1,
                                             index,
                                             shape.data(),
                                             static_cast<int>(shape.size()),
                                             &forwarded,
                                             status.get()));
  LIGHTCC_RETURN_IF_ERROR(status.to_status("TensorFlow gave no output"));
  LIGHTCC_ASSIGN_OR_RETURN(operation.output, refer_to(output.get()));
  operation.input = *operation.output;
  tensors_.push_back(std::move(output));
  if (forwarded < 0) {
    LIGHTCC_ASSIGN_OR_RETURN(input, get_input(context_, index));
    operation.input.data = api().tensor_data(input.get());
    tensors_.push_back(std::move(input));
  }
  return {};
}

Status Call::take(int index, Operation& operation) {
  LIGHTCC_ASSIGN_OR_RETURN(TensorPtr input, get_input(context_, index));
  LIGHTCC_ASSIGN_OR_RETURN(operation.input, refer_to(input.get()));
  const TfType type = api().tensor_type(input.get());
  tensors_.push_back(std::move(input));
  operation.allocator = [call = this, index, type](const std::vector<std::int64_t>& shape,
                                                   std::size_t bytes) -> Result<void*> {
    LIGHTCC_ASSIGN_OR_RETURN(TensorPtr output, allocate(call->context_, index, type, shape, bytes));
    void* const data = api().tensor_data(output.get());
    call->outputs_[static_cast<std::size_t>(index)] = std::move(output);
    return data;
  };
  return {};
}

Result<std::vector<Operation>> Call::make_operations() {
  const OpType op = collective_.op();
  const int inputs = api().input_count(context_);
  const int tensors = op == OpType::kAlltoall ? 1 : inputs - (collective_.is_tuned ? 1 : 0);
  const std::vector<std::string>& names = collective_.names;
  if (!names.empty() && names.size() != static_cast<std::size_t>(tensors)) {
    return make_error(
        ErrorCode::kInvalidArgument, "there are %d tensors and %zu names", tensors, names.size());
  }
  outputs_.resize(static_cast<std::size_t>(tensors));
  std::vector<Operation> operations(static_cast<std::size_t>(std::max(tensors, 1)),
                                    collective_.prototype);
  for (int i = 0; i < tensors; ++i) {
    Operation& operation = operations[static_cast<std::size_t>(i)];
    operation.name =
        names.empty() ? collective_.name : std::optional(names[static_cast<std::size_t>(i)]);
    LIGHTCC_RETURN_IF_ERROR(is_in_place(op) ? take_in_place(i, operation) : take(i, operation));
  }
  if (op == OpType::kAlltoall) {
    LIGHTCC_ASSIGN_OR_RETURN(operations[0].request.splits, read_splits(context_, 1));
  }
  if (collective_.is_tuned) {
    LIGHTCC_RETURN_IF_ERROR(read_ways(context_, tensors, operations));
  }
  return operations;
}

Status Call::start() {
  LIGHTCC_ASSIGN_OR_RETURN(std::vector<Operation> operations, make_operations());
  Status submitted;
  const bool exists = use_current_world([&](World& world) {
    submitted =
        world.submit(std::move(operations),
                     [call = shared_from_this()](const Result<std::vector<Outcome>>& result) {
                       run_on_done_thread([call, result] { call->finish(result); });
                     },
                     {.grouping = collective_.grouping});
  });
  return exists ? submitted : not_initialized();
}

Status Call::write_results(const std::vector<Outcome>& outcomes) {
  switch (collective_.op()) {
    case OpType::kJoin:
      return write_int32(context_, 0, {}, {outcomes.front().value});
    case OpType::kAlltoall: {
      const std::vector<std::int64_t>& splits = outcomes.front().received_splits;
      return write_int32(context_, 1, {static_cast<std::int64_t>(splits.size())}, splits);
    }
    default:
      return {};
  }
}

void Call::finish(const Result<std::vector<Outcome>>& result) {
  const Status status = result.ok() ? write_results(*result) : result.status();
  if (!status.ok()) {
    fail(context_, status);
  }
  tensors_.clear();  // So that the next operation may have their memory.
  outputs_.clear();
  done_();
}

}  // namespace

void fail(KernelContext* context, const Status& error) {
  CallStatus status;
  status.set(to_code(error.code()), error.message().c_str());
  api().kernel_failure(context, status.get());
}

Status not_initialized() {
  return {ErrorCode::kMismatch, "lightcc has not been initialized; use hvd.init()."};
}

Result<TensorPtr> allocate(KernelContext* context,
                           int index,
                           TfType type,
                           const std::vector<std::int64_t>& shape,
                           std::size_t bytes) {
  CallStatus status;
  TensorPtr tensor(api().allocate_output(
      context, index, type, shape.data(), static_cast<int>(shape.size()), bytes, status.get()));
  LIGHTCC_RETURN_IF_ERROR(status.to_status("TensorFlow gave no output"));
  return tensor;
}

Status write_int32(KernelContext* context,
                   int index,
                   const std::vector<std::int64_t>& shape,
                   const std::vector<std::int64_t>& values) {
  const std::vector<std::int32_t> narrow(values.begin(), values.end());
  const std::size_t bytes = narrow.size() * sizeof(std::int32_t);
  LIGHTCC_ASSIGN_OR_RETURN(const TensorPtr output,
                           allocate(context, index, TfType::kInt32, shape, bytes));
  if (bytes > 0) {
    std::memcpy(api().tensor_data(output.get()), narrow.data(), bytes);
  }
  return {};
}

void start_collective(const Collective& collective, KernelContext* context, Done done) {
  const auto call = std::make_shared<Call>(collective, context, std::move(done));
  const Status started = call->start();
  if (!started.ok()) {
    call->finish(started);
  }
}

}  // namespace lightcc::tf
