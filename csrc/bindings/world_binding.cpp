// Submits operations on tensors. A call is: take the tensor as it lies, submit, and remember in the
// handle table what must stay alive. It costs about a microsecond, so nothing here goes through
// Python code.
#include "world_binding.hpp"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include <pybind11/stl.h>

#include "errors.hpp"
#include "handles.hpp"
#include "results_on_gpus.hpp"

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

ReduceOp to_reduce_op(int op) {
  if (op < 0 || op >= kReduceOpCount) {
    throw py::value_error("op is " + std::to_string(op) +
                          "; allowed are Average, Sum, Adasum, Min, Max and Product.");
  }
  return static_cast<ReduceOp>(op);
}

std::uint32_t to_process_set(OptionalSet process_set) {
  if (!process_set) {
    throw py::value_error("Process set provided does not exist, or has not been registered.");
  }
  return *process_set;
}

Operation collective(OpType op, OptionalSet process_set, int root_or_peer = -1) {
  Operation operation;
  Signature& s = operation.request.signature;
  s.op = op;
  s.process_set = to_process_set(process_set);
  s.root_or_peer = root_or_peer;
  return operation;
}

Operation reduction(OpType op, OptionalSet process_set, const ReduceArguments& reduce) {
  Operation operation = collective(op, process_set);
  Signature& s = operation.request.signature;
  s.reduce_op = to_reduce_op(reduce.op);
  s.prescale = reduce.prescale;
  s.postscale = reduce.postscale;
  s.compression = reduce.compression;
  return operation;
}

FusionWish to_fusion_wish(const FusionArguments& fusion) {
  if (fusion.rule < 0 || fusion.rule >= kFusionRuleCount) {
    throw py::value_error("fusion_rule is " + std::to_string(fusion.rule) + "; allowed are 0 to " +
                          std::to_string(kFusionRuleCount - 1) + ".");
  }
  return {static_cast<FusionRule>(fusion.rule), fusion.limit_bytes};
}

std::vector<TensorView> to_tensors(py::handle tensors, bool grouped, Access access) {
  std::vector<TensorView> views;
  if (!grouped) {
    views.push_back(to_tensor(tensors, access));
    return views;
  }
  if (!py::isinstance<py::sequence>(tensors) || py::len(tensors) == 0) {
    throw py::value_error("A grouped operation needs a list of at least one tensor.");
  }
  for (const py::handle tensor : tensors) {
    views.push_back(to_tensor(tensor, access));
  }
  return views;
}

/// The caller's outputs for `count` results; none where `outputs` is None.
std::vector<TensorView> to_outputs(py::handle outputs, bool grouped, std::size_t count) {
  if (outputs.is_none()) {
    return {};
  }
  std::vector<TensorView> views = to_tensors(outputs, grouped, Access::kWrite);
  if (views.size() != count) {
    throw py::value_error("There are " + std::to_string(count) + " tensors and " +
                          std::to_string(views.size()) + " outputs.");
  }
  return views;
}

/// New tensors for the results of `inputs`, where frameworks make them; none: the engine does.
std::vector<TensorView> make_outputs(const std::vector<TensorView>& inputs) {
  std::vector<TensorView> outputs;
  for (const TensorView& input : inputs) {
    std::optional<TensorView> made = input.kind->make_output(input);
    if (!made) {
      return {};
    }
    outputs.push_back(std::move(*made));
  }
  return outputs;
}

constexpr Access access(bool in_place) {
  return in_place ? Access::kWrite : Access::kRead;
}

/// The value; raises, as for a tensor that cannot be taken, where this machine has no use of CUDA.
template <typename T>
T usable(Result<T> result) {
  if (!result.ok() && (result.status().code() == ErrorCode::kUnimplemented ||
                       result.status().code() == ErrorCode::kInvalidArgument)) {
    throw py::value_error("Tensor lies in CUDA memory, which lightcc cannot use here: " +
                          result.status().message() + ".");
  }
  return value_or_throw(std::move(result));
}

/// Makes `tensor` the input, and in place the output; what is left of it has no shape.
void take(TensorView& tensor, bool in_place, Operation& operation) {
  operation.input = std::move(tensor.ref);
  tensor.ref = {.data = operation.input.data,
                .dtype = operation.input.dtype,
                .memory = operation.input.memory};
  if (in_place) {
    operation.output = operation.input;
  }
}

/// Makes `tensor` the output; what is left of it has no shape.
void take_output(TensorView& tensor, Operation& operation) {
  operation.output = std::move(tensor.ref);
  tensor.ref = {.data = operation.output->data,
                .dtype = operation.output->dtype,
                .memory = operation.output->memory};
}

}  // namespace

/// One operation, or a group of equal ones, before it has tensors.
struct WorldBinding::Call {
  std::optional<std::string> name = std::nullopt;
  std::string sequence{};
  Operation prototype{};
  Grouping grouping = Grouping::kNone;
  bool is_list = false;  ///< The result is a list.
  bool in_place = false;
  bool waits = false;
  bool repeats = false;  ///< Perhaps: one named tensor, and the caller waits.
};

WorldBinding::WorldBinding(WorldPtr world, Knobs knobs)
    : world_(std::move(world)), owner_(::getpid()), knobs_(std::move(knobs)) {}

// pybind11 may throw where it creates its internals, which exist as long as this object does.
// NOLINTNEXTLINE(bugprone-exception-escape)
WorldBinding::~WorldBinding() {
  if (::getpid() != owner_) {
    static_cast<void>(world_.release());
    return;
  }
  if (is_in_completion()) {
    // The last reference went in a callback, whose thread cannot wait for itself.
    std::thread([world = std::move(world_)]() mutable { world.reset(); }).detach();
    return;
  }
  const py::gil_scoped_release nogil;
  world_.reset();
}

std::int64_t WorldBinding::submit(Call&& call,
                                  std::vector<TensorView> tensors,
                                  std::vector<TensorView> outputs) {
  const OpType op = call.prototype.request.signature.op;
  if (outputs.empty() && !call.in_place && (op == OpType::kAllreduce || op == OpType::kBroadcast)) {
    outputs = make_outputs(tensors);
  }
  const std::shared_ptr<ReadyEvent> ready = order(tensors, outputs);
  call.prototype.name = std::move(call.name);
  call.prototype.sequence = std::move(call.sequence);
  std::vector<Operation> operations;
  operations.reserve(std::max<std::size_t>(tensors.size(), 1));
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    operations.push_back(call.prototype);
  }
  operations.push_back(std::move(call.prototype));
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (!tensors.empty()) {
      take(tensors[i], call.in_place, operations[i]);
      operations[i].ready = ready;
    }
    if (!outputs.empty()) {
      take_output(outputs[i], operations[i]);
    }
  }
  return start(call, std::move(operations), std::move(tensors), std::move(outputs));
}

std::shared_ptr<ReadyEvent> WorldBinding::order(std::vector<TensorView>& tensors,
                                                std::vector<TensorView>& outputs) {
  std::vector<cuda::GpuStream> streams;
  for (std::vector<TensorView>* const views : {&tensors, &outputs}) {
    for (TensorView& view : *views) {
      Memory& memory = view.ref.memory;
      if (memory.kind != MemoryKind::kCuda) {
        continue;
      }
      if (stream_order_ == nullptr) {
        stream_order_ = cuda::make_stream_order();
      }
      if (memory.device == kDeviceOfItsAddress) {
        memory.device = usable(stream_order_->device_of(view.ref.data));
      }
      const cuda::GpuStream stream{.device = memory.device, .handle = view.stream};
      if (std::ranges::find(streams, stream) == streams.end()) {
        streams.push_back(stream);
      }
    }
  }
  if (streams.empty()) {
    return nullptr;
  }
  const auto timing = world_->is_recording() ? cuda::Timing::kKnown : cuda::Timing::kUnknown;
  return usable(stream_order_->record(streams, timing));
}

std::int64_t WorldBinding::submit(Call&& call, py::handle tensors, py::handle outputs) {
  std::vector<TensorView> inputs = to_tensors(tensors, call.is_list, Access::kRead);
  std::vector<TensorView> results = to_outputs(outputs, call.is_list, inputs.size());
  return submit(std::move(call), std::move(inputs), std::move(results));
}

std::int64_t WorldBinding::start(const Call& call,
                                 std::vector<Operation> operations,
                                 std::vector<TensorView> tensors,
                                 std::vector<TensorView> outputs) {
  const OpType op = operations.front().request.signature.op;
  const bool from_any = operations.front().from_any;
  const bool repeats = call.repeats && operations.front().input.memory.kind == MemoryKind::kHost &&
                       tensors.front().ref.data != nullptr;
  const auto repeated = repeats ? repeats_.expect(operations.front()) : nullptr;
  Handle handle = value_or_throw(world_->start(
      std::move(operations), {.grouping = call.grouping, .waits = call.waits, .repeats = repeats}));
  if (repeats) {
    repeated->handle = handle;
  }
  return add_pending({.world = shared_from_this(),
                      .handle = std::move(handle),
                      .op = op,
                      .grouped = call.is_list,
                      .in_place = call.in_place,
                      .from_any = from_any,
                      .tensors = std::move(tensors),
                      .outputs = std::move(outputs)});
}

std::int64_t WorldBinding::allreduce(py::handle tensors,
                                     bool grouped,
                                     bool in_place,
                                     OptionalName name,
                                     const ReduceArguments& reduce,
                                     OptionalSet process_set,
                                     bool waits,
                                     std::string sequence) {
  const bool repeats =
      waits && !grouped && name.value.has_value() && sequence.empty() && !reduce.compression;
  return submit({.name = std::move(name.value),
                 .sequence = std::move(sequence),
                 .prototype = reduction(OpType::kAllreduce, process_set, reduce),
                 .grouping = grouped ? Grouping::kOneName : Grouping::kNone,
                 .is_list = grouped,
                 .in_place = in_place,
                 .waits = waits,
                 .repeats = repeats},
                to_tensors(tensors, grouped, access(in_place)));
}

std::int64_t WorldBinding::allreduce_each(py::handle tensors,
                                          const std::vector<std::string>& names,
                                          const ReduceArguments& reduce,
                                          OptionalSet process_set,
                                          const FusionArguments& fusion) {
  std::vector<TensorView> views = to_tensors(tensors, true, Access::kWrite);
  if (views.size() != names.size()) {
    throw py::value_error("There are " + std::to_string(views.size()) + " tensors and " +
                          std::to_string(names.size()) + " names.");
  }
  Call call{.prototype = reduction(OpType::kAllreduce, process_set, reduce),
            .grouping = fusion.together ? Grouping::kNamedMembers : Grouping::kNone,
            .is_list = true,
            .in_place = true};
  call.prototype.request.signature.fusion = to_fusion_wish(fusion);
  std::vector<TensorView> no_outputs;
  const std::shared_ptr<ReadyEvent> ready = order(views, no_outputs);
  std::vector<Operation> operations(views.size(), call.prototype);
  for (std::size_t i = 0; i < views.size(); ++i) {
    operations[i].name = names[i];
    take(views[i], true, operations[i]);
    operations[i].ready = ready;
  }
  return start(call, std::move(operations), std::move(views));
}

std::int64_t WorldBinding::allgather(py::handle tensors,
                                     bool grouped,
                                     OptionalName name,
                                     OptionalSet process_set,
                                     bool waits,
                                     py::handle outputs,
                                     std::string sequence,
                                     std::optional<CompressionSpec> compression) {
  Operation prototype = collective(OpType::kAllgather, process_set);
  prototype.request.signature.compression = std::move(compression);
  return submit({.name = std::move(name.value),
                 .sequence = std::move(sequence),
                 .prototype = std::move(prototype),
                 .grouping = grouped ? Grouping::kOneName : Grouping::kNone,
                 .is_list = grouped,
                 .waits = waits},
                tensors,
                outputs);
}

std::int64_t WorldBinding::reducescatter(py::handle tensors,
                                         bool grouped,
                                         OptionalName name,
                                         const ReduceArguments& reduce,
                                         OptionalSet process_set,
                                         bool waits,
                                         py::handle outputs,
                                         std::string sequence) {
  return submit({.name = std::move(name.value),
                 .sequence = std::move(sequence),
                 .prototype = reduction(OpType::kReducescatter, process_set, reduce),
                 .grouping = grouped ? Grouping::kOneName : Grouping::kNone,
                 .is_list = grouped,
                 .waits = waits},
                tensors,
                outputs);
}

std::int64_t WorldBinding::broadcast(py::handle tensor,
                                     bool in_place,
                                     Argument<int, "root_rank"> root_rank,
                                     OptionalName name,
                                     OptionalSet process_set,
                                     bool waits,
                                     std::string sequence) {
  return submit({.name = std::move(name.value),
                 .sequence = std::move(sequence),
                 .prototype = collective(OpType::kBroadcast, process_set, root_rank.value),
                 .in_place = in_place,
                 .waits = waits},
                {to_tensor(tensor, access(in_place))});
}

std::int64_t WorldBinding::alltoall(py::handle tensor,
                                    py::handle splits,
                                    OptionalName name,
                                    OptionalSet process_set,
                                    bool waits,
                                    py::handle output,
                                    std::string sequence) {
  Operation prototype = collective(OpType::kAlltoall, process_set);
  prototype.request.splits = to_splits(splits);
  return submit({.name = std::move(name.value),
                 .sequence = std::move(sequence),
                 .prototype = std::move(prototype),
                 .waits = waits},
                tensor,
                output);
}

std::int64_t WorldBinding::send(py::handle tensor,
                                Argument<int, "destination"> destination,
                                OptionalName name,
                                OptionalSet process_set,
                                bool waits,
                                std::string sequence) {
  return submit({.name = std::move(name.value),
                 .sequence = std::move(sequence),
                 .prototype = collective(OpType::kSend, process_set, destination.value),
                 .waits = waits},
                {to_tensor(tensor, Access::kRead)});
}

std::int64_t WorldBinding::recv(py::handle tensor,
                                Argument<int, "source"> source,
                                OptionalName name,
                                OptionalSet process_set,
                                bool waits,
                                std::string sequence) {
  return submit({.name = std::move(name.value),
                 .sequence = std::move(sequence),
                 .prototype = collective(OpType::kRecv, process_set, source.value),
                 .in_place = true,
                 .waits = waits},
                {to_tensor(tensor, Access::kWrite)});
}

std::int64_t WorldBinding::recv_any(py::handle tensor,
                                    OptionalSet process_set,
                                    std::string sequence) {
  Operation prototype = collective(OpType::kRecv, process_set);
  prototype.from_any = true;
  return submit(
      {.sequence = std::move(sequence), .prototype = std::move(prototype), .in_place = true},
      {to_tensor(tensor, Access::kWrite)});
}

std::int64_t WorldBinding::barrier(OptionalSet process_set) {
  return submit({.prototype = collective(OpType::kBarrier, process_set), .waits = true}, {});
}

std::int64_t WorldBinding::join() {
  return submit({.prototype = collective(OpType::kJoin, kGlobalProcessSet), .waits = true}, {});
}

std::int64_t WorldBinding::add_process_set(std::vector<std::int32_t> ranks) {
  Operation prototype = collective(OpType::kAddProcessSet, kGlobalProcessSet);
  prototype.request.ranks = std::move(ranks);
  return submit({.prototype = std::move(prototype), .waits = true}, {});
}

std::int64_t WorldBinding::remove_process_set(std::int32_t process_set) {
  return submit({.prototype = collective(OpType::kRemoveProcessSet, kGlobalProcessSet, process_set),
                 .waits = true},
                {});
}

void WorldBinding::finish() {
  std::optional<py::error_already_set> interruption;
  const Status finished = wait_for_engine(
      interruption, [&](const auto& is_interrupted) { return world_->finish(is_interrupted); });
  release_finished();
  if (interruption) {
    throw py::error_already_set(*interruption);
  }
  throw_if_error(finished);
}

void WorldBinding::fail(const std::string& reason) {
  if (::getpid() == owner_) {
    const py::gil_scoped_release nogil;
    world_->fail({ErrorCode::kPeerFailed, reason, world_->topology().rank});
  }
}

void WorldBinding::shutdown() {
  Status left;
  if (::getpid() == owner_) {
    const py::gil_scoped_release nogil;
    left = world_->shutdown();
  }
  if (left.code() != ErrorCode::kInvalidArgument) {  // It was refused.
    abandon_pending(this);
  }
  throw_if_error(left);
}

}  // namespace lightcc::bindings
