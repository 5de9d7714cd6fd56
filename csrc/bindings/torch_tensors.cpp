// Everything that is known about torch in lightcc's C++, for any torch from 2.4 on.
//
// Nothing of torch is included or linked, and torch is never imported: a tensor can only come from
// a torch that has been. Tensors are described by torch's DLPack exchange table where it has one (a
// tenth of a microsecond), and by their Python attributes otherwise, or where the table refuses:
// the attributes then tell why. Results are tensors over the engine's buffers, through the same
// table or a DLPack capsule; they are never copied.
//
// Autograd plays no part: what a tensor requires or records is not looked at, and writing into it
// is not recorded. A negative view, whose memory holds the numbers with the other sign, is read
// from a copy that torch makes, and refused where it would be written. A tensor on a CUDA device
// holds its values when the stream has written them that its thread gives work to. Not handled:
// other devices, sparse layouts, copying what does not fit.
#include "torch_tensors.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dlpack.hpp"
#include "dlpack_export.hpp"
#include "dlpack_import.hpp"
#include "tensors.hpp"

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

/// One dtype in two languages: the engine's, and the attribute of `torch`.
struct DtypeRow {
  DataType dtype;
  const char* torch;
};

constexpr std::array kDtypes{
    DtypeRow{DataType::kUint8, "uint8"},
    DtypeRow{DataType::kInt8, "int8"},
    DtypeRow{DataType::kUint16, "uint16"},
    DtypeRow{DataType::kInt16, "int16"},
    DtypeRow{DataType::kInt32, "int32"},
    DtypeRow{DataType::kInt64, "int64"},
    DtypeRow{DataType::kFloat16, "float16"},
    DtypeRow{DataType::kFloat32, "float32"},
    DtypeRow{DataType::kFloat64, "float64"},
    DtypeRow{DataType::kBool, "bool"},
    DtypeRow{DataType::kBfloat16, "bfloat16"},
};

/// Rows stand in the order of the engine's numbers.
constexpr bool dtypes_are_total() {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (static_cast<std::size_t>(kDtypes[i].dtype) != i) {
      return false;
    }
  }
  return kDtypes.size() == kDataTypeCount;
}
static_assert(dtypes_are_total());

/// What is looked up once. Objects are kept for the life of the process: at exit nothing of Python
/// may be released after the interpreter.
struct Torch {
  PyTypeObject* tensor_type = nullptr;
  PyObject* strided = nullptr;      ///< torch.strided, the layout of dense tensors.
  PyObject* from_dlpack = nullptr;  ///< torch.from_dlpack.
  PyObject* module = nullptr;
  PyObject* is_neg = nullptr;  ///< torch.Tensor.is_neg; a bound method takes longer to find.
  std::array<PyObject*, kDtypes.size()> dtypes{};
  const dlpack::ExchangeApi* exchange = nullptr;  ///< Null: torch has none that is known here.
  bool use_exchange = true;
};

const dlpack::ExchangeApi* find_exchange(py::handle tensor_type) {
  const py::object capsule = py::getattr(tensor_type, "__dlpack_c_exchange_api__", py::none());
  if (capsule.is_none()) {
    return nullptr;
  }
  const auto* header = static_cast<const dlpack::ExchangeHeader*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (header == nullptr) {
    PyErr_Clear();
  }
  while (header != nullptr && header->version.major != dlpack::kMajorVersion) {
    header = header->previous;
  }
  const auto* api = reinterpret_cast<const dlpack::ExchangeApi*>(header);
  return api != nullptr && api->describe_tensor != nullptr ? api : nullptr;
}

/// torch, or null as long as nobody has imported it. Guarded by the GIL.
Torch* find_torch() {
  static Torch torch;
  if (torch.tensor_type != nullptr) {
    return &torch;
  }
  const auto name = py::reinterpret_steal<py::object>(PyUnicode_InternFromString("torch"));
  const auto module = py::reinterpret_steal<py::object>(PyImport_GetModule(name.ptr()));
  PyErr_Clear();
  if (!module) {
    return nullptr;
  }
  // A module that is still being imported, or only bears the name, has no tensors.
  py::object tensor_type = py::getattr(module, "Tensor", py::none());
  py::object from_dlpack = py::getattr(module, "from_dlpack", py::none());
  if (!PyType_Check(tensor_type.ptr()) || from_dlpack.is_none()) {
    return nullptr;
  }
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    torch.dtypes[i] = py::object(py::getattr(module, kDtypes[i].torch, py::none())).release().ptr();
  }
  torch.strided = py::object(py::getattr(module, "strided", py::none())).release().ptr();
  torch.from_dlpack = from_dlpack.release().ptr();
  torch.is_neg = py::object(py::getattr(tensor_type, "is_neg", py::none())).release().ptr();
  torch.exchange = find_exchange(tensor_type);
  torch.module = module.inc_ref().ptr();
  torch.tensor_type = reinterpret_cast<PyTypeObject*>(tensor_type.release().ptr());
  return &torch;
}

[[noreturn]] void throw_unsupported(py::handle tensor) {
  throw_unsupported_dtype(tensor.attr("type")().cast<std::string>());
}

void check_layout(const Torch& torch, py::handle tensor) {
  const py::object layout = tensor.attr("layout");
  if (tensor.attr("is_nested").cast<bool>()) {
    throw py::value_error("Nested tensors are not supported.");
  }
  if (layout.ptr() == torch.strided) {
    return;
  }
  const auto name = py::str(layout).cast<std::string>();
  if (name == "torch.sparse_coo") {
    throw_unsupported(tensor);
  }
  // Not all of these have the name of a type.
  throw py::value_error("Tensor layout " + name + " is not supported.");
}

[[noreturn]] void throw_on_other_device(py::handle tensor) {
  throw py::value_error("Tensor is on device " +
                        py::str(tensor.attr("device")).cast<std::string>() +
                        "; this version of lightcc takes tensors in CPU and CUDA memory only.");
}

/// Whether the elements of `tensor` are the negatives of what its memory holds.
bool is_negative_view(const Torch& torch, py::handle tensor) {
  const auto found =
      py::reinterpret_steal<py::object>(PyObject_CallOneArg(torch.is_neg, tensor.ptr()));
  if (!found) {
    throw py::error_already_set();
  }
  return found.ptr() == Py_True;
}

/// A copy of a negative view for reading. Raises where it would be written.
py::object resolved(py::handle tensor, Access access) {
  if (access == Access::kWrite) {
    throw py::value_error(
        "Tensor is a negative view (is_neg()), which cannot receive a result: use resolve_neg() of "
        "it, or the operation that returns a new tensor.");
  }
  return tensor.attr("detach")().attr("resolve_neg")();
}

/// The stream that this thread gives a CUDA device's work to; none for host memory.
std::optional<std::uintptr_t> current_stream(const Torch& torch, const Memory& memory) {
  if (memory.kind != MemoryKind::kCuda) {
    return std::nullopt;
  }
  const dlpack::ExchangeApi* const exchange = torch.use_exchange ? torch.exchange : nullptr;
  if (exchange == nullptr || exchange->current_work_stream == nullptr) {
    const py::handle module(torch.module);
    return module.attr("cuda")
        .attr("current_stream")(memory.device)
        .attr("cuda_stream")
        .cast<std::uintptr_t>();
  }
  void* stream = nullptr;
  if (exchange->current_work_stream(dlpack::kCuda, memory.device, &stream) != 0) {
    throw py::error_already_set();
  }
  return reinterpret_cast<std::uintptr_t>(stream);
}

/// What the engine knows of devices; whether it serves them, it says itself.
std::optional<Memory> memory_of(dlpack::Device device) {
  switch (device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
      return Memory{};
    case dlpack::kCuda:
      return Memory{.kind = MemoryKind::kCuda, .device = device.id};
    default:
      return std::nullopt;
  }
}

/// Raises unless `view` has memory that its elements can be read from.
TensorView checked(TensorView view) {
  const bool empty = std::ranges::find(view.ref.shape, 0) != view.ref.shape.end();
  if (view.ref.data == nullptr && !empty) {
    throw py::value_error("Tensor has no memory: it is a " +
                          std::string(Py_TYPE(view.owner.ptr())->tp_name) + ".");
  }
  check_aligned(view.ref.data, element_size(view.ref.dtype));
  return view;
}

class TorchKind final : public TensorKind {
 public:
  bool has(py::handle object) const override;
  TensorView view(py::handle object, Access access) const override;
  py::object from_output(const TensorView& like,
                         const std::vector<std::int64_t>& shape,
                         std::shared_ptr<OutputBuffer> output) const override;
  std::optional<TensorView> make_output(const TensorView& like) const override;
  py::object from_splits(const std::vector<std::int64_t>& splits) const override;
  std::optional<std::uintptr_t> result_stream(const TensorView& view) const override;

 private:
  TensorView view_by_attributes(const Torch& torch, py::handle tensor, Access access) const;
};

bool TorchKind::has(py::handle object) const {
  const Torch* torch = find_torch();
  return torch != nullptr && PyObject_TypeCheck(object.ptr(), torch->tensor_type);
}

// hot
TensorView TorchKind::view(py::handle object, Access access) const {
  const Torch& torch = *find_torch();
  dlpack::Tensor found{};
  if (torch.exchange == nullptr || !torch.use_exchange) {
    return view_by_attributes(torch, object, access);
  }
  if (torch.exchange->describe_tensor(object.ptr(), &found) != 0) {
    PyErr_Clear();
    return view_by_attributes(torch, object, access);
  }
  if (found.data == nullptr) {
    // Empty, or something that only has the type of a tensor: a lazy module's parameter, a fake.
    return view_by_attributes(torch, object, access);
  }
  const std::optional<Memory> memory = memory_of(found.device);
  if (!memory) {
    throw_on_other_device(object);
  }
  const std::optional<DataType> dtype = dlpack::known_type(found.dtype);
  if (!dtype) {
    throw_unsupported(object);
  }
  if (!dlpack::is_contiguous(found.dimensions, found.shape, found.strides)) {
    throw_not_contiguous();
  }
  if (is_negative_view(torch, object)) {
    return view(resolved(object, access), access);
  }
  const std::optional<std::uintptr_t> stream = current_stream(torch, *memory);
  return checked({.ref = {.data = static_cast<std::byte*>(found.data) + found.byte_offset,
                          .dtype = *dtype,
                          .shape = {found.shape, found.shape + found.dimensions},
                          .memory = *memory},
                  .owner = py::reinterpret_borrow<py::object>(object),
                  .kind = this,
                  .stream = stream});
}

TensorView TorchKind::view_by_attributes(const Torch& torch,
                                         py::handle tensor,
                                         Access access) const {
  check_layout(torch, tensor);
  const py::object device = tensor.attr("device");
  const auto device_type = device.attr("type").cast<std::string>();
  if (device_type != "cpu" && device_type != "cuda") {
    throw_on_other_device(tensor);
  }
  const Memory memory = device_type == "cpu" ? Memory()
                                             : Memory{.kind = MemoryKind::kCuda,
                                                      .device = device.attr("index").cast<int>()};
  const py::object dtype = tensor.attr("dtype");
  const auto* const row = std::ranges::find(torch.dtypes, dtype.ptr());
  if (row == torch.dtypes.end()) {
    throw_unsupported(tensor);
  }
  if (!tensor.attr("is_contiguous")().cast<bool>()) {
    throw_not_contiguous();
  }
  if (is_negative_view(torch, tensor)) {
    return view_by_attributes(torch, resolved(tensor, access), access);
  }
  const std::optional<std::uintptr_t> stream = current_stream(torch, memory);
  const auto address = tensor.attr("data_ptr")().cast<std::uintptr_t>();
  std::vector<std::int64_t> shape;
  for (const py::handle extent : tensor.attr("shape")) {
    shape.push_back(extent.cast<std::int64_t>());
  }
  return checked(
      {.ref = {.data = reinterpret_cast<void*>(address),  // NOLINT(*-int-to-ptr)
               .dtype = kDtypes[static_cast<std::size_t>(row - torch.dtypes.begin())].dtype,
               .shape = std::move(shape),
               .memory = memory},
       .owner = py::reinterpret_borrow<py::object>(tensor),
       .kind = this,
       .stream = stream});
}

py::object tensor_by_exchange(const dlpack::ExchangeApi& exchange,
                              std::unique_ptr<dlpack::Export<dlpack::VersionedTensor>> made) {
  made->managed.version = {.major = dlpack::kMajorVersion, .minor = 0};
  void* tensor = nullptr;
  // Taken over even where it fails.
  if (exchange.import_tensor(&made.release()->managed, &tensor) != 0) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(tensor));
}

py::object make_tensor(DataType dtype,
                       const std::vector<std::int64_t>& shape,
                       std::shared_ptr<OutputBuffer> output,
                       const Memory& memory) {
  const Torch& torch = *find_torch();
  if (torch.exchange != nullptr && torch.use_exchange) {
    return tensor_by_exchange(
        *torch.exchange,
        dlpack::make_export<dlpack::VersionedTensor>(dtype, shape, std::move(output), memory));
  }
  return py::handle(torch.from_dlpack)(dlpack::to_capsule(
      dlpack::make_export<dlpack::ManagedTensor>(dtype, shape, std::move(output), memory)));
}

py::object TorchKind::from_output(const TensorView& like,
                                  const std::vector<std::int64_t>& shape,
                                  std::shared_ptr<OutputBuffer> output) const {
  return make_tensor(like.ref.dtype, shape, std::move(output), like.ref.memory);
}

/// On a GPU, of torch's own memory, which it has at hand.
std::optional<TensorView> TorchKind::make_output(const TensorView& like) const {
  if (like.ref.memory.kind != MemoryKind::kCuda) {
    return std::nullopt;
  }
  const py::object plain = like.owner.attr("detach")();
  return view(py::handle(find_torch()->module).attr("empty_like")(plain), Access::kWrite);
}

std::optional<std::uintptr_t> TorchKind::result_stream(const TensorView& view) const {
  return current_stream(*find_torch(), view.ref.memory);
}

py::object TorchKind::from_splits(const std::vector<std::int64_t>& splits) const {
  return make_tensor(
      DataType::kInt32, {static_cast<std::int64_t>(splits.size())}, splits_buffer(splits), {});
}

bool use_torch_exchange(bool enabled) {
  Torch* torch = find_torch();
  if (torch == nullptr) {
    throw py::value_error("torch has not been imported.");
  }
  torch->use_exchange = enabled;
  return torch->exchange != nullptr;
}

}  // namespace

const TensorKind& torch_kind() {
  static const TorchKind kKind;
  return kKind;
}

void register_torch_tensors(py::module_& module) {
  module.def("use_torch_exchange",
             &use_torch_exchange,
             py::arg("enabled"),
             "Chooses whether torch's DLPack exchange table is used; returns whether it has one.");
}

}  // namespace lightcc::bindings
