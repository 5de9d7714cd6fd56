#include "handles.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "errors.hpp"
#include "results_on_gpus.hpp"
#include "world_binding.hpp"

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

struct HandleTable {
  std::unordered_map<std::int64_t, Pending> pending;
  std::unordered_set<std::int64_t> abandoned;  ///< Were pending when their world ended.
  std::int64_t last = 0;
};

HandleTable& table() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<HandleTable> storage;
  return storage.call_once_and_store_result([] { return HandleTable(); }).get_stored();
}

// Whether Python can still run callbacks. The interpreter's end waits for those that run.
struct InterpreterGate {
  std::atomic<bool> closed{false};
  std::atomic<int> inside{0};
};
InterpreterGate gate;

bool enter_interpreter() {
  gate.inside.fetch_add(1, std::memory_order_seq_cst);
  if (!gate.closed.load(std::memory_order_seq_cst)) {
    return true;
  }
  gate.inside.fetch_sub(1, std::memory_order_seq_cst);
  return false;
}

void close_interpreter() {
  gate.closed.store(true, std::memory_order_seq_cst);
  const py::gil_scoped_release nogil;
  while (gate.inside.load(std::memory_order_seq_cst) > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Runs a callback, and drops the reference that came with it. After the interpreter's end it does
// neither.
void run_callback(PyObject* callback, std::int64_t handle) {
  if (!enter_interpreter()) {
    return;
  }
  {
    const py::gil_scoped_acquire gil;
    const auto owned = py::reinterpret_steal<py::object>(callback);
    const auto result = py::reinterpret_steal<py::object>(
        PyObject_CallFunction(callback, "L", static_cast<long long>(handle)));
    if (!result) {
      PyErr_WriteUnraisable(callback);
    }
  }
  gate.inside.fetch_sub(1, std::memory_order_seq_cst);
}

[[noreturn]] void throw_unknown(std::int64_t handle) {
  throw py::value_error("Handle " + std::to_string(handle) +
                        " was not created or has been cleared.");
}

py::object member_result(const Pending& pending, std::size_t index, Outcome& outcome) {
  const TensorView& tensor = pending.tensors[index];
  if (pending.in_place) {
    return tensor.kind->written(tensor);
  }
  if (!pending.outputs.empty()) {
    return pending.outputs[index].kind->written(pending.outputs[index]);
  }
  if (tensor.ref.memory.kind == MemoryKind::kCuda) {  // Others than of torch and CuPy name none.
    outcome.output->hand_to(tensor.kind->result_stream(tensor).value_or(0));
  }
  return tensor.kind->from_output(tensor, outcome.shape, std::move(outcome.output));
}

/// What synchronize() returns for a finished operation.
py::object to_result(const Pending& pending, std::vector<Outcome>& outcomes) {
  if (outcomes.empty() || (!pending.tensors.empty() && outcomes.size() != pending.tensors.size())) {
    throw_status(make_error(ErrorCode::kInternal,
                            "%zu outcomes for %zu tensors",
                            outcomes.size(),
                            pending.tensors.size()));
  }
  switch (pending.op) {
    case OpType::kSend:
    case OpType::kBarrier:
    case OpType::kRemoveProcessSet:
      return py::none();
    case OpType::kJoin:
    case OpType::kAddProcessSet:
      return py::int_(outcomes.front().value);
    case OpType::kAlltoall:
      return py::make_tuple(
          member_result(pending, 0, outcomes.front()),
          pending.tensors.front().kind->from_splits(outcomes.front().received_splits));
    case OpType::kAllreduce:
    case OpType::kAllgather:
    case OpType::kBroadcast:
    case OpType::kReducescatter:
      break;
    case OpType::kRecv:
      if (pending.from_any) {
        const std::int32_t source = outcomes.front().value;
        return py::make_tuple(member_result(pending, 0, outcomes.front()), source);
      }
      break;
  }
  if (!pending.grouped) {
    return member_result(pending, 0, outcomes.front());
  }
  py::list results(outcomes.size());
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    results[i] = member_result(pending, i, outcomes[i]);
  }
  return results;
}

using Deadline = std::optional<std::chrono::steady_clock::time_point>;

Deadline deadline_in(std::optional<double> timeout_s) {
  // More than a year is for ever, and would not fit into a time point.
  if (!timeout_s || *timeout_s > 3.2e7) {
    return std::nullopt;
  }
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(*timeout_s));
}

bool has_passed(const Deadline& deadline) {
  return deadline && std::chrono::steady_clock::now() >= *deadline;
}

py::object wait(std::int64_t handle, std::optional<double> timeout_s) {
  const Deadline deadline = deadline_in(timeout_s);
  // The entry leaves the table while this thread waits: it belongs to one waiter.
  auto entry = table().pending.extract(handle);
  if (entry.empty()) {
    if (table().abandoned.erase(handle) != 0) {
      throw_status(make_error(
          ErrorCode::kShutDown,
          "lightcc has been shut down while operation %lld was pending; its result is lost.",
          static_cast<long long>(handle)));
    }
    return py::none();
  }
  Pending& pending = entry.mapped();
  const Until until = until_of(pending);
  std::optional<py::error_already_set> interruption;
  bool too_late = false;
  auto outcomes = wait_for_engine(interruption, [&](const auto& is_interrupted) {
    const auto ends = [&] {
      const bool interrupted = is_interrupted();
      too_late = has_passed(deadline);
      return interrupted || too_late;
    };
    return pending.world->engine().wait(pending.handle, std::cref(ends), until);
  });
  if (interruption) {
    if (!outcomes.ok()) {
      table().pending.insert(std::move(entry));
    }
    throw py::error_already_set(*interruption);
  }
  if (too_late && !outcomes.ok() && outcomes.status().code() == ErrorCode::kTimeout) {
    table().pending.insert(std::move(entry));
    throw_status(
        make_error(ErrorCode::kTimeout, "The operation was not complete after %g s.", *timeout_s));
  }
  // Whatever happens next, the GPU may use what the operation touches.
  const std::unique_ptr<Pending, void (*)(Pending*)> keeper(
      &pending, [](Pending* used) { keep_until_finished(std::move(*used)); });
  auto done = value_or_throw(std::move(outcomes));
  order_streams(pending);
  return to_result(pending, done);
}

bool poll(std::int64_t handle) {
  release_finished();
  const auto entry = table().pending.find(handle);
  if (entry == table().pending.end()) {
    if (table().abandoned.contains(handle)) {
      return true;
    }
    throw_unknown(handle);
  }
  return entry->second.world->engine().poll(entry->second.handle);
}

void add_done_callback(std::int64_t handle, py::object callback) {
  if (PyCallable_Check(callback.ptr()) == 0) {
    throw py::type_error("A done callback is called with the handle; found a " +
                         std::string(Py_TYPE(callback.ptr())->tp_name) + ".");
  }
  const auto entry = table().pending.find(handle);
  if (entry == table().pending.end()) {
    if (!table().abandoned.contains(handle)) {
      throw_unknown(handle);
    }
    run_callback(callback.release().ptr(), handle);
    return;
  }
  const std::shared_ptr<WorldBinding> world = entry->second.world;
  const Handle waited = entry->second.handle;
  world->engine().call_when_done(
      waited, [callable = callback.release().ptr(), handle] { run_callback(callable, handle); });
}

}  // namespace

std::int64_t add_pending(Pending pending) {
  release_finished();
  HandleTable& handles = table();
  const std::int64_t handle = ++handles.last;
  handles.pending.emplace(handle, std::move(pending));
  return handle;
}

void abandon_pending(const WorldBinding* world) {
  HandleTable& handles = table();
  for (auto entry = handles.pending.begin(); entry != handles.pending.end();) {
    if (entry->second.world.get() == world) {
      handles.abandoned.insert(entry->first);
      entry = handles.pending.erase(entry);
    } else {
      ++entry;
    }
  }
  release_finished();
}

void register_handles(py::module_& module) {
  py::module_::import("atexit").attr("register")(py::cpp_function(&close_interpreter));
  module.def("poll",
             &poll,
             py::arg("handle"),
             "Returns whether an operation is finished; ValueError for an unknown handle.");
  module.def("wait",
             &wait,
             py::arg("handle"),
             py::arg("timeout_s") = py::none(),
             "Waits for an operation and returns its result; None for an unknown handle.");
  module.def("add_done_callback",
             &add_done_callback,
             py::arg("handle"),
             py::arg("callback"),
             "Calls callback(handle) once when an operation is done.");
  module.def("let_other_callbacks_run",
             &let_other_completions_run,
             "For a done callback that is about to wait otherwise than by wait(): others go on.");
  module.def("in_done_callback",
             &is_in_completion,
             "Returns whether this thread runs a done callback, which may not shut down.");
}

}  // namespace lightcc::bindings
