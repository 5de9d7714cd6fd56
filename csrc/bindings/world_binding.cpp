// Submits operations on tensors. A call is: take the tensor as it lies, name the operation, submit,
// and remember in the handle table what must stay alive. It costs about a microsecond, so nothing
// here goes through Python code.
//
// Names. A named operation is "<op>.<name>", an unnamed one "<op>.noname.<n>", where n counts the
// unnamed operations of the process set: ranks must submit those in the same order. A count
// advances only when a submission was accepted, so that a ValueError on one rank does not put it
// out of step. Members of a group are "<group>_<i>of<n>". Operations of two ranks carry both ranks
// in their name and are counted for the pair.
#include "world_binding.hpp"

#include <unistd.h>

#include <utility>

#include <pybind11/stl.h>

#include "errors.hpp"
#include "handles.hpp"

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

Submission collective(OpType op, OptionalSet process_set, int root_or_peer = -1) {
  Submission submission;
  submission.op = op;
  submission.process_set = to_process_set(process_set);
  submission.root_or_peer = root_or_peer;
  return submission;
}

Submission reduction(OpType op, OptionalSet process_set, const ReduceArguments& reduce) {
  Submission submission = collective(op, process_set);
  submission.reduce_op = to_reduce_op(reduce.op);
  submission.prescale = reduce.prescale;
  submission.postscale = reduce.postscale;
  return submission;
}

// What compression keeps back is remembered by name, so what has none is never compressed.
Submission compressible(OptionalSet process_set, const ReduceArguments& reduce, bool is_named) {
  if (reduce.topk && !is_named) {
    throw py::value_error(
        "top-k compression needs a name: what is not sent is kept back for the next allreduce of "
        "that name.");
  }
  Submission submission = reduction(OpType::kAllreduce, process_set, reduce);
  submission.topk = reduce.topk;
  submission.may_compress = is_named;
  return submission;
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

constexpr Access access(bool in_place) {
  return in_place ? Access::kWrite : Access::kRead;
}

/// Makes `tensor` the input, and in place the output; what is left of it has no shape.
void take(TensorView& tensor, bool in_place, Submission& submission) {
  submission.dtype = tensor.dtype;
  submission.shape = std::move(tensor.shape);
  submission.input = tensor.data;
  submission.output = in_place ? tensor.data : nullptr;
}

}  // namespace

/// One operation, or a group of equal ones, before it has tensors.
struct WorldBinding::Call {
  const char* prefix = "";  ///< Of names: "allreduce".
  OptionalName name = std::nullopt;
  Submission prototype{};
  bool grouped = false;
  bool in_place = false;
  bool waits = false;
  /// Set for operations between two ranks.
  int source = -1;
  int destination = -1;
};

WorldBinding::WorldBinding(std::unique_ptr<World> world, Knobs knobs)
    : world_(std::move(world)), owner_(::getpid()), knobs_(std::move(knobs)) {}

// pybind11 may throw where it creates its internals, which exist as long as this object does.
// NOLINTNEXTLINE(bugprone-exception-escape)
WorldBinding::~WorldBinding() {
  if (::getpid() != owner_) {
    static_cast<void>(world_.release());
    return;
  }
  const py::gil_scoped_release nogil;
  world_.reset();
}

std::int64_t WorldBinding::submit(const Call& call, std::vector<TensorView> tensors) {
  std::uint64_t* counter = nullptr;
  std::string name = call.prefix;
  if (call.source >= 0) {
    name += '.' + std::to_string(call.source) + "to" + std::to_string(call.destination);
  }
  if (call.name) {
    name += '.' + *call.name;
  } else {
    counter = &auto_names_[{call.prototype.process_set, call.source, call.destination}];
    name += ".noname." + std::to_string(*counter);
  }

  const std::size_t count = tensors.empty() ? 1 : tensors.size();
  std::vector<Submission> submissions(count, call.prototype);
  for (std::size_t i = 0; i < count; ++i) {
    Submission& submission = submissions[i];
    submission.name =
        call.grouped ? name + '_' + std::to_string(i + 1) + "of" + std::to_string(count) : name;
    submission.is_automatic = counter != nullptr;
    if (!tensors.empty()) {
      take(tensors[i], call.in_place, submission);
    }
  }
  const HandleId id = value_or_throw(world_->submit(std::move(submissions), call.waits));
  if (counter != nullptr) {
    ++*counter;
  }
  return add_pending({.world = shared_from_this(),
                      .id = id,
                      .op = call.prototype.op,
                      .grouped = call.grouped,
                      .in_place = call.in_place,
                      .tensors = std::move(tensors)});
}

std::int64_t WorldBinding::allreduce(py::handle tensors,
                                     bool grouped,
                                     bool in_place,
                                     OptionalName name,
                                     const ReduceArguments& reduce,
                                     OptionalSet process_set,
                                     bool waits) {
  const bool is_named = name.has_value();
  return submit({.prefix = grouped ? "grouped_allreduce" : "allreduce",
                 .name = std::move(name),
                 .prototype = compressible(process_set, reduce, is_named),
                 .grouped = grouped,
                 .in_place = in_place,
                 .waits = waits},
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
  Submission prototype = compressible(process_set, reduce, true);
  prototype.fusion = to_fusion_wish(fusion);
  std::vector<Submission> submissions(views.size(), prototype);
  for (std::size_t i = 0; i < views.size(); ++i) {
    submissions[i].name = "allreduce." + names[i];
    take(views[i], true, submissions[i]);
  }
  const HandleId id = value_or_throw(fusion.together ? world_->submit(std::move(submissions), false)
                                                     : world_->submit_each(std::move(submissions)));
  return add_pending({.world = shared_from_this(),
                      .id = id,
                      .op = OpType::kAllreduce,
                      .grouped = true,
                      .in_place = true,
                      .tensors = std::move(views)});
}

std::int64_t WorldBinding::allgather(
    py::handle tensors, bool grouped, OptionalName name, OptionalSet process_set, bool waits) {
  return submit({.prefix = grouped ? "grouped_allgather" : "allgather",
                 .name = std::move(name),
                 .prototype = collective(OpType::kAllgather, process_set),
                 .grouped = grouped,
                 .waits = waits},
                to_tensors(tensors, grouped, Access::kRead));
}

std::int64_t WorldBinding::reducescatter(py::handle tensors,
                                         bool grouped,
                                         OptionalName name,
                                         const ReduceArguments& reduce,
                                         OptionalSet process_set,
                                         bool waits) {
  return submit({.prefix = grouped ? "grouped_reducescatter" : "reducescatter",
                 .name = std::move(name),
                 .prototype = reduction(OpType::kReducescatter, process_set, reduce),
                 .grouped = grouped,
                 .waits = waits},
                to_tensors(tensors, grouped, Access::kRead));
}

std::int64_t WorldBinding::broadcast(py::handle tensor,
                                     bool in_place,
                                     int root_rank,
                                     OptionalName name,
                                     OptionalSet process_set,
                                     bool waits) {
  return submit({.prefix = "broadcast",
                 .name = std::move(name),
                 .prototype = collective(OpType::kBroadcast, process_set, root_rank),
                 .in_place = in_place,
                 .waits = waits},
                {to_tensor(tensor, access(in_place))});
}

std::int64_t WorldBinding::alltoall(
    py::handle tensor, py::handle splits, OptionalName name, OptionalSet process_set, bool waits) {
  Submission prototype = collective(OpType::kAlltoall, process_set);
  prototype.splits = to_splits(splits);
  return submit({.prefix = "alltoall",
                 .name = std::move(name),
                 .prototype = std::move(prototype),
                 .waits = waits},
                {to_tensor(tensor, Access::kRead)});
}

std::int64_t WorldBinding::send(
    py::handle tensor, int destination, OptionalName name, OptionalSet process_set, bool waits) {
  return submit({.prefix = "sendrecv",
                 .name = std::move(name),
                 .prototype = collective(OpType::kSend, process_set, destination),
                 .waits = waits,
                 .source = world_->topology().rank,
                 .destination = destination},
                {to_tensor(tensor, Access::kRead)});
}

std::int64_t WorldBinding::recv(
    py::handle tensor, int source, OptionalName name, OptionalSet process_set, bool waits) {
  return submit({.prefix = "sendrecv",
                 .name = std::move(name),
                 .prototype = collective(OpType::kRecv, process_set, source),
                 .in_place = true,
                 .waits = waits,
                 .source = source,
                 .destination = world_->topology().rank},
                {to_tensor(tensor, Access::kWrite)});
}

// The next four are not in flight twice in one process set, so one fixed name does.
std::int64_t WorldBinding::barrier(OptionalSet process_set) {
  return submit({.prefix = "barrier",
                 .name = "all",
                 .prototype = collective(OpType::kBarrier, process_set),
                 .waits = true},
                {});
}

std::int64_t WorldBinding::join() {
  return submit({.prefix = "join",
                 .name = "all",
                 .prototype = collective(OpType::kJoin, kGlobalProcessSet),
                 .waits = true},
                {});
}

std::int64_t WorldBinding::add_process_set(std::vector<std::int32_t> ranks) {
  Submission prototype = collective(OpType::kAddProcessSet, kGlobalProcessSet);
  prototype.ranks = std::move(ranks);
  return submit(
      {.prefix = "process_set", .name = "add", .prototype = std::move(prototype), .waits = true},
      {});
}

std::int64_t WorldBinding::remove_process_set(std::int32_t process_set) {
  return submit({.prefix = "process_set",
                 .name = "remove",
                 .prototype = collective(OpType::kRemoveProcessSet, kGlobalProcessSet, process_set),
                 .waits = true},
                {});
}

void WorldBinding::shutdown() {
  if (::getpid() == owner_) {
    const py::gil_scoped_release nogil;
    world_->shutdown();
  }
  abandon_pending(this);
}

}  // namespace lightcc::bindings
