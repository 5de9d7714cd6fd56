#include "repeats.hpp"

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "errors.hpp"
#include "handles.hpp"
#include "world_binding.hpp"

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

// So many names are remembered; programs that always have new ones forget all of them then.
constexpr std::size_t kMaxNames = 256;

/// Where the result of `input` goes.
struct Destination {
  TensorView view;                       ///< The result, or without its owner
  std::shared_ptr<OutputBuffer> buffer;  ///< what it will be made of.
};

Destination make_destination(const TensorView& input, bool in_place) {
  if (in_place) {
    return {.view = input, .buffer = nullptr};
  }
  if (std::optional<TensorView> made = input.kind->make_output(input)) {
    return {.view = std::move(*made), .buffer = nullptr};
  }
  TensorView view{.ref = input.ref, .owner = {}, .kind = input.kind};
  auto buffer = std::make_shared<OutputBuffer>(byte_count(input.ref.dtype, input.ref.shape));
  view.ref.data = buffer->data();
  return {.view = std::move(view), .buffer = std::move(buffer)};
}

/// The result; null: it is for World.allreduce().
py::object repeat(WorldBinding& world,
                  py::handle tensor,
                  bool in_place,
                  std::string_view name,
                  const RepeatedKind& kind) {
  const auto known = world.repeats().find(name, kind);
  if (known == nullptr) {
    return {};
  }
  TensorView input = to_tensor(tensor, in_place ? Access::kWrite : Access::kRead);
  if (input.ref.dtype != known->dtype || input.ref.shape != known->shape ||
      input.ref.memory.kind != MemoryKind::kHost) {
    return {};
  }
  Destination to = make_destination(input, in_place);
  if (to.view.ref.data == nullptr) {
    return {};
  }
  std::optional<py::error_already_set> interruption;
  const Status done = wait_for_engine(interruption, [&](const auto& is_interrupted) {
    return world.engine().repeat(
        known->handle, input.ref.data, to.view.ref.data, std::cref(is_interrupted));
  });
  if (interruption) {
    if (done.code() == ErrorCode::kTimeout) {  // It goes on, and nobody will wait for it.
      to.view.copy = std::make_shared<ValueCopy>(ValueCopy{.memory = to.buffer, .shape = {}});
      add_pending({.world = world.shared_from_this(),
                   .handle = known->handle,
                   .op = OpType::kAllreduce,
                   .tensors = {std::move(input)},
                   .outputs = {std::move(to.view)}});
    }
    throw py::error_already_set(*interruption);
  }
  throw_if_error(done);
  return to.buffer == nullptr
             ? to.view.kind->written(to.view)
             : input.kind->from_output(input, input.ref.shape, std::move(to.buffer));
}

/// The arguments as World.repeat_allreduce() has them; null with an error set: it raises.
// hot
PyObject* repeat_allreduce(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  constexpr Py_ssize_t kCount = 7;
  if (count != kCount) {
    PyErr_Format(PyExc_TypeError, "repeat_allreduce() takes 7 arguments, not %zd", count);
    return nullptr;
  }
  PyObject* const name = arguments[2];
  if (PyUnicode_Check(name) == 0 || PyLong_Check(arguments[3]) == 0 ||
      PyFloat_Check(arguments[4]) == 0 || PyFloat_Check(arguments[5]) == 0 ||
      PyLong_Check(arguments[6]) == 0) {
    Py_RETURN_NONE;
  }
  Py_ssize_t name_bytes = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name, &name_bytes);
  const RepeatedKind kind{
      .op = PyLong_AsLongLong(arguments[3]),
      .prescale = PyFloat_AS_DOUBLE(arguments[4]),
      .postscale = PyFloat_AS_DOUBLE(arguments[5]),
      .process_set = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(arguments[6]))};
  if (text == nullptr || PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  try {
    py::object result = repeat(py::cast<WorldBinding&>(py::handle(self)),
                               arguments[0],
                               arguments[1] == Py_True,
                               {text, static_cast<std::size_t>(name_bytes)},
                               kind);
    return result ? result.release().ptr() : py::none().release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<RepeatedAllreduce> Repeats::expect(const Operation& operation) {
  if (known_.size() >= kMaxNames && !known_.contains(*operation.name)) {
    known_.clear();
  }
  const Signature& s = operation.request.signature;
  const RepeatedKind kind{static_cast<int>(s.reduce_op), s.prescale, s.postscale, s.process_set};
  auto made = std::make_shared<RepeatedAllreduce>(
      RepeatedAllreduce{kind, operation.input.dtype, operation.input.shape, {}});
  known_[*operation.name] = made;
  return made;
}

std::shared_ptr<const RepeatedAllreduce> Repeats::find(std::string_view name,
                                                       const RepeatedKind& kind) const {
  const auto found = known_.find(name);
  const bool is_same = found != known_.end() && found->second->kind == kind;
  return is_same && found->second->handle != nullptr ? found->second : nullptr;
}

void register_repeats(py::handle type) {
  static PyMethodDef method{
      .ml_name = "repeat_allreduce",
      .ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&repeat_allreduce)),
      .ml_flags = METH_FASTCALL,
      .ml_doc =
          "repeat_allreduce($self, tensor, in_place, name, op, prescale, postscale, "
          "process_set, /)\n--\n\n"
          "Does an allreduce that was done before, and returns the result; None: there was "
          "none such."};
  const auto made = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method));
  type.attr("repeat_allreduce") = made;
}

}  // namespace lightcc::bindings
