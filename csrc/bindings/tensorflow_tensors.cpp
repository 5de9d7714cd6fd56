// Everything that is known about TensorFlow in lightcc's C++ bindings: eager tensors and variables,
// of any TensorFlow from 2.14 on, and Keras's variables, which hold one.
//
// Nothing of TensorFlow is included or linked, and it is never imported: a tensor can only come
// from a TensorFlow that has been. Memory goes both ways through DLPack capsules, so nothing is
// copied. Eager tensors cannot change, so they are only read. A variable that is read is taken with
// the value that it has at the call. One that receives a result is copied first; the operation
// works on the copy, and the variable is assigned when the operation is waited for. Symbolic
// tensors, which have no values, are refused: lightcc.tensorflow takes them. Not handled: memory of
// devices, and gradients, which are not recorded.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dlpack.hpp"
#include "dlpack_export.hpp"
#include "tensors.hpp"

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

struct NumberRow {
  DataType dtype;
  int tensorflow;  ///< The value of tensorflow::DataType, as saved graphs have it.
};

constexpr std::array kNumbers{NumberRow{DataType::kFloat32, 1},
                              NumberRow{DataType::kFloat64, 2},
                              NumberRow{DataType::kInt32, 3},
                              NumberRow{DataType::kUint8, 4},
                              NumberRow{DataType::kInt16, 5},
                              NumberRow{DataType::kInt8, 6},
                              NumberRow{DataType::kInt64, 9},
                              NumberRow{DataType::kBool, 10},
                              NumberRow{DataType::kBfloat16, 14},
                              NumberRow{DataType::kUint16, 17},
                              NumberRow{DataType::kFloat16, 19}};
static_assert(kNumbers.size() == kDataTypeCount);

/// What is looked up once. Objects are kept for the life of the process: at exit nothing of Python
/// may be released after the interpreter.
struct Tensorflow {
  PyTypeObject* tensor = nullptr;
  PyTypeObject* variable = nullptr;
  PyTypeObject* eager = nullptr;
  PyObject* to_dlpack = nullptr;
  PyObject* from_dlpack = nullptr;
};

/// The module, or none as long as nobody has imported it.
py::object imported(const char* name) {
  const auto key = py::reinterpret_steal<py::object>(PyUnicode_InternFromString(name));
  const auto module = py::reinterpret_steal<py::object>(PyImport_GetModule(key.ptr()));
  PyErr_Clear();
  return module ? py::object(module) : py::none();
}

/// An attribute such as "a.b"; none where there is none.
py::object found_in(py::object object, const std::vector<const char*>& path) {
  for (const char* name : path) {
    object = py::getattr(object, name, py::none());
  }
  return object;
}

bool is_a(py::handle object, PyTypeObject* type) {
  return PyObject_TypeCheck(object.ptr(), type) != 0;
}

PyTypeObject* kept_type(py::object object) {
  return reinterpret_cast<PyTypeObject*>(object.release().ptr());
}

/// TensorFlow, or null as long as nobody has imported it. Guarded by the GIL.
const Tensorflow* find_tensorflow() {
  static Tensorflow tensorflow;
  if (tensorflow.tensor != nullptr) {
    return &tensorflow;
  }
  const py::object module = imported("tensorflow");
  if (module.is_none()) {
    return nullptr;
  }
  // A module that is still being imported, or only bears the name, has no tensors.
  py::object tensor = found_in(module, {"Tensor"});
  py::object variable = found_in(module, {"Variable"});
  py::object eager = found_in(module, {"__internal__", "EagerTensor"});
  py::object to_dlpack = found_in(module, {"experimental", "dlpack", "to_dlpack"});
  py::object from_dlpack = found_in(module, {"experimental", "dlpack", "from_dlpack"});
  if (!PyType_Check(tensor.ptr()) || !PyType_Check(variable.ptr()) || !PyType_Check(eager.ptr()) ||
      to_dlpack.is_none() || from_dlpack.is_none()) {
    return nullptr;
  }
  tensorflow = {.tensor = kept_type(std::move(tensor)),
                .variable = kept_type(std::move(variable)),
                .eager = kept_type(std::move(eager)),
                .to_dlpack = to_dlpack.release().ptr(),
                .from_dlpack = from_dlpack.release().ptr()};
  return &tensorflow;
}

/// The variable of TensorFlow that one of Keras holds; none for anything else.
py::object held_variable(const Tensorflow& tensorflow, py::handle object) {
  const py::object type = found_in(imported("keras"), {"Variable"});
  if (!PyType_Check(type.ptr()) || !is_a(object, reinterpret_cast<PyTypeObject*>(type.ptr()))) {
    return py::none();
  }
  const py::object value = py::getattr(object, "value", py::none());
  return is_a(value, tensorflow.variable) ? value : py::none();
}

DataType dtype_of(py::handle tensor) {
  const py::object dtype = tensor.attr("dtype");
  const int number = dtype.attr("as_datatype_enum").cast<int>();
  for (const NumberRow& row : kNumbers) {
    if (row.tensorflow == number) {
      return row.dtype;
    }
  }
  throw_unsupported_dtype("tf." + dtype.attr("name").cast<std::string>());
}

void require_values(const Tensorflow& tensorflow, py::handle tensor) {
  if (!is_a(tensor, tensorflow.eager)) {
    throw py::type_error(
        "This TensorFlow tensor is symbolic, so it has no values yet: in tf.function and in graphs "
        "use lightcc.tensorflow, whose operations become part of the graph.");
  }
}

/// Where an eager tensor lies. The view owns `tensor`, which keeps the memory.
TensorView view_of_values(const Tensorflow& tensorflow, const py::object& tensor) {
  require_values(tensorflow, tensor);
  const DataType dtype = dtype_of(tensor);  // TensorFlow ends the process where DLPack has none.
  const py::object capsule = py::handle(tensorflow.to_dlpack)(tensor);
  const auto* managed =
      static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) {
    throw py::error_already_set();
  }
  const dlpack::Tensor& found = managed->tensor;
  if (found.device.type != dlpack::kCpu && found.device.type != dlpack::kCudaHost) {
    throw py::value_error("Tensor is on device " +
                          py::str(tensor.attr("device")).cast<std::string>() +
                          "; this version of lightcc takes tensors in CPU memory only.");
  }
  void* const data = static_cast<std::byte*>(found.data) + found.byte_offset;
  check_aligned(data, element_size(dtype));
  return {
      .ref = {.data = data, .dtype = dtype, .shape = {found.shape, found.shape + found.dimensions}},
      .owner = tensor,
      .kind = &tensorflow_kind()};
}

/// Gives `view` memory of its own, with the same values.
void copy_values(TensorView& view) {
  std::size_t bytes = element_size(view.ref.dtype);
  for (const std::int64_t extent : view.ref.shape) {
    bytes *= static_cast<std::size_t>(extent);
  }
  auto memory = std::make_shared<OutputBuffer>(bytes);
  if (bytes > 0) {
    std::byte* const data = output_data(view.ref.dtype, view.ref.shape, memory);
    const py::gil_scoped_release nogil;
    std::memcpy(data, view.ref.data, bytes);
  }
  view.ref.data = memory->data();
  view.copy =
      std::make_shared<ValueCopy>(ValueCopy{.memory = std::move(memory), .shape = view.ref.shape});
}

/// A tensor over `output`, which it keeps alive.
py::object make_eager_tensor(DataType dtype,
                             const std::vector<std::int64_t>& shape,
                             std::shared_ptr<OutputBuffer> output) {
  // TensorFlow 2.14 takes no booleans this way; bytes become them in a copy.
  const bool is_bool = dtype == DataType::kBool;
  auto made = dlpack::make_export<dlpack::ManagedTensor>(
      is_bool ? DataType::kUint8 : dtype, shape, std::move(output));
  const py::object tensor =
      py::handle(find_tensorflow()->from_dlpack)(dlpack::to_capsule(std::move(made)));
  const py::object module = imported("tensorflow");
  return is_bool ? module.attr("cast")(tensor, module.attr("bool")) : tensor;
}

class TensorflowKind final : public TensorKind {
 public:
  bool has(py::handle object) const override;
  TensorView view(py::handle object, Access access) const override;
  py::object from_output(const TensorView& like,
                         const std::vector<std::int64_t>& shape,
                         std::shared_ptr<OutputBuffer> output) const override;
  py::object from_splits(const std::vector<std::int64_t>& splits) const override;
  py::object written(const TensorView& view) const override;
};

bool TensorflowKind::has(py::handle object) const {
  const Tensorflow* tensorflow = find_tensorflow();
  return tensorflow != nullptr &&
         (is_a(object, tensorflow->tensor) || is_a(object, tensorflow->variable) ||
          !held_variable(*tensorflow, object).is_none());
}

TensorView TensorflowKind::view(py::handle object, Access access) const {
  const Tensorflow& tensorflow = *find_tensorflow();
  if (is_a(object, tensorflow.tensor)) {
    require_values(tensorflow, object);
    if (access == Access::kWrite) {
      throw py::type_error(
          "A TensorFlow tensor cannot receive a result, because it never changes: pass a "
          "tf.Variable, or use the operation that returns a new tensor.");
    }
    return view_of_values(tensorflow, py::reinterpret_borrow<py::object>(object));
  }
  const py::object held = is_a(object, tensorflow.variable)
                              ? py::reinterpret_borrow<py::object>(object)
                              : held_variable(tensorflow, object);
  TensorView view = view_of_values(tensorflow, held.attr("value")());
  if (access == Access::kWrite) {
    copy_values(view);
    view.owner = py::reinterpret_borrow<py::object>(object);
  }
  return view;
}

py::object TensorflowKind::from_output(const TensorView& like,
                                       const std::vector<std::int64_t>& shape,
                                       std::shared_ptr<OutputBuffer> output) const {
  return make_eager_tensor(like.ref.dtype, shape, std::move(output));
}

py::object TensorflowKind::from_splits(const std::vector<std::int64_t>& splits) const {
  return make_eager_tensor(
      DataType::kInt32, {static_cast<std::int64_t>(splits.size())}, splits_buffer(splits));
}

py::object TensorflowKind::written(const TensorView& view) const {
  view.owner.attr("assign")(make_eager_tensor(view.ref.dtype, view.copy->shape, view.copy->memory));
  return view.owner;
}

}  // namespace

const TensorKind& tensorflow_kind() {
  static const TensorflowKind kKind;
  return kKind;
}

}  // namespace lightcc::bindings
