// Arrays in CUDA memory of any library: CuPy's, Numba's, JAX's, or whatever else has
// `__cuda_array_interface__` (versions 2 and 3) or, on a CUDA device, `__dlpack__`.
//
// An array is taken where it lies, contiguous. What its producer's stream has still to do is waited
// for, on the GPU's time: an interface of version 3 names that stream, and version 2 stands for the
// default stream. A producer of DLPack orders itself before the default stream. Results
// are CuPy arrays for CuPy arrays, and a CudaArray for all others. Not handled: copying what does
// not fit, managed memory by DLPack, and the exchange tables of other types than torch's.
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cuda_array.hpp"
#include "dlpack_import.hpp"
#include "tensors.hpp"

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

constexpr const char* kInterface = "__cuda_array_interface__";
/// By the array interface and by DLPack.
constexpr std::uintptr_t kDefaultStream = 1;

bool has_attribute(py::handle object, const char* name) {
  return PyObject_HasAttrString(object.ptr(), name) != 0;
}

/// What an interface says of `key`; raises where that is nothing, or of another type.
template <typename T>
T interface_entry(const py::dict& interface, const char* key) {
  if (!interface.contains(key)) {
    throw py::value_error(std::string(kInterface) + " has no '" + key + "'.");
  }
  try {
    return interface[key].cast<T>();
  } catch (const py::cast_error&) {
    throw py::value_error(std::string(kInterface) + " has '" + key +
                          "': " + py::repr(interface[key]).cast<std::string>() +
                          ", which is not allowed there.");
  }
}

/// The entry, or none where it is None or not there.
template <typename T>
std::optional<T> interface_option(const py::dict& interface, const char* key) {
  if (!interface.contains(key) || interface[key].is_none()) {
    return std::nullopt;
  }
  return interface_entry<T>(interface, key);
}

/// None: no dtype of the engine's, in the byte order of this machine.
std::optional<DataType> parse_typestr(const std::string& text) {
  int bytes = 0;
  if (text.size() < 3 || text[0] == '>' ||
      std::from_chars(text.data() + 2, text.data() + text.size(), bytes).ec != std::errc()) {
    return std::nullopt;
  }
  return builtin_data_type(text[1], bytes);
}

/// Null: nothing is to be waited for.
std::optional<std::uintptr_t> stream_of(const py::dict& interface, int version) {
  if (version < 3) {
    return kDefaultStream;
  }
  const auto stream = interface_option<std::uintptr_t>(interface, "stream");
  if (stream == 0U) {
    throw py::value_error(std::string(kInterface) +
                          " has stream 0, which is not allowed; the default stream is 1.");
  }
  return stream;
}

/// CuPy, where `array` is of it; null: it is not. Whoever made such an array has imported it.
py::object cupy_of(py::handle array) {
  const auto cupy = py::reinterpret_steal<py::object>(PyImport_GetModule(py::str("cupy").ptr()));
  PyErr_Clear();
  const bool is_of_it =
      cupy && has_attribute(cupy, "ndarray") && py::isinstance(array, cupy.attr("ndarray"));
  return is_of_it ? cupy : py::object();
}

/// A DLPack capsule for reading: it and its memory stay its producer's.
py::object to_read_capsule(py::handle object) {
  const py::object produce = object.attr("__dlpack__");
  try {
    return produce(py::arg("stream") = kDefaultStream,
                   py::arg("max_version") = py::make_tuple(dlpack::kMajorVersion, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) {
      throw;
    }
  }
  return produce(py::arg("stream") = kDefaultStream);
}

class CudaArrayKind final : public TensorKind {
 public:
  bool has(py::handle object) const override;
  TensorView view(py::handle object, Access access) const override;
  py::object from_output(const TensorView& like,
                         const std::vector<std::int64_t>& shape,
                         std::shared_ptr<OutputBuffer> output) const override;
  py::object from_splits(const std::vector<std::int64_t>& splits) const override {
    return numpy_kind().from_splits(splits);
  }
  std::optional<std::uintptr_t> result_stream(const TensorView& view) const override;

 private:
  /// None: the array's dtype has no word in the interface, and DLPack may have one.
  std::optional<TensorView> view_by_interface(py::handle object, Access access) const;
  TensorView view_by_dlpack(py::handle object, Access access) const;
};

bool CudaArrayKind::has(py::handle object) const {
  if (PyType_Check(object.ptr()) != 0) {
    return false;
  }
  if (has_attribute(object, kInterface)) {
    return true;
  }
  if (!has_attribute(object, "__dlpack__") || !has_attribute(object, "__dlpack_device__")) {
    return false;
  }
  const py::object type = object.attr("__dlpack_device__")()[py::int_(0)];
  return type.equal(py::int_(dlpack::kCuda));
}

TensorView CudaArrayKind::view(py::handle object, Access access) const {
  if (has_attribute(object, kInterface)) {
    if (std::optional<TensorView> found = view_by_interface(object, access)) {
      return std::move(*found);
    }
  }
  return view_by_dlpack(object, access);
}

std::optional<TensorView> CudaArrayKind::view_by_interface(py::handle object, Access access) const {
  const py::object found = object.attr(kInterface);
  if (!py::isinstance<py::dict>(found)) {
    throw py::type_error(std::string(kInterface) + " is a " + Py_TYPE(found.ptr())->tp_name +
                         "; expected a dict.");
  }
  const auto interface = py::reinterpret_borrow<py::dict>(found);
  const auto version = interface_entry<int>(interface, "version");
  if (version != 2 && version != 3) {
    throw py::value_error(std::string(kInterface) + " has version " + std::to_string(version) +
                          "; known are 2 and 3.");
  }
  const auto typestr = interface_entry<std::string>(interface, "typestr");
  const std::optional<DataType> dtype = parse_typestr(typestr);
  if (!dtype) {
    if (has_attribute(object, "__dlpack__")) {
      return std::nullopt;
    }
    throw_unsupported_dtype(typestr);
  }
  if (interface_option<py::object>(interface, "mask")) {
    throw py::value_error("Masked arrays are not supported.");
  }
  auto shape = interface_entry<std::vector<std::int64_t>>(interface, "shape");
  const auto strides = interface_option<std::vector<std::int64_t>>(interface, "strides");
  const auto bytes = static_cast<std::int64_t>(element_size(*dtype));
  if (strides && strides->size() != shape.size()) {
    throw py::value_error(std::string(kInterface) + " has " + std::to_string(shape.size()) +
                          " extents and " + std::to_string(strides->size()) + " strides.");
  }
  if (strides &&
      !dlpack::is_contiguous(
          static_cast<std::int32_t>(shape.size()), shape.data(), strides->data(), bytes)) {
    throw_not_contiguous();
  }
  const auto [address, read_only] =
      interface_entry<std::pair<std::uintptr_t, bool>>(interface, "data");
  if (access == Access::kWrite && read_only) {
    throw_read_only();
  }
  const std::optional<std::uintptr_t> stream = stream_of(interface, version);
  auto* const data = reinterpret_cast<void*>(address);  // NOLINT(*-int-to-ptr): of the GPU
  check_aligned(data, static_cast<std::size_t>(bytes));
  const bool empty = std::ranges::find(shape, 0) != shape.end();
  return TensorView{
      .ref = {.data = data,
              .dtype = *dtype,
              .shape = std::move(shape),
              .memory = {.kind = MemoryKind::kCuda, .device = empty ? 0 : kDeviceOfItsAddress}},
      .owner = py::reinterpret_borrow<py::object>(object),
      .kind = this,
      .stream = stream};
}

TensorView CudaArrayKind::view_by_dlpack(py::handle object, Access access) const {
  py::object capsule = to_read_capsule(object);
  const bool versioned = PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0;
  const void* const held =
      PyCapsule_GetPointer(capsule.ptr(), versioned ? "dltensor_versioned" : "dltensor");
  if (held == nullptr) {
    throw py::error_already_set();
  }
  const auto* const of_version = static_cast<const dlpack::VersionedTensor*>(held);
  if (versioned && of_version->version.major != dlpack::kMajorVersion) {
    throw py::value_error("__dlpack__() gave version " + std::to_string(of_version->version.major) +
                          " of DLPack; known is " + std::to_string(dlpack::kMajorVersion) + ".");
  }
  const dlpack::Tensor& tensor =
      versioned ? of_version->tensor : static_cast<const dlpack::ManagedTensor*>(held)->tensor;
  if (tensor.device.type != dlpack::kCuda) {
    throw py::value_error("Tensor is on DLPack's device type " +
                          std::to_string(tensor.device.type) + "; expected CUDA, which is " +
                          std::to_string(dlpack::kCuda) + ".");
  }
  const std::optional<DataType> dtype = dlpack::known_type(tensor.dtype);
  if (!dtype) {
    throw_unsupported_dtype("with DLPack's code " + std::to_string(tensor.dtype.code) + " and " +
                            std::to_string(tensor.dtype.bits) + " bits");
  }
  if (!dlpack::is_contiguous(tensor.dimensions, tensor.shape, tensor.strides)) {
    throw_not_contiguous();
  }
  if (access == Access::kWrite && versioned && (of_version->flags & dlpack::kReadOnly) != 0) {
    throw_read_only();
  }
  auto* const data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  check_aligned(data, element_size(*dtype));
  return TensorView{.ref = {.data = data,
                            .dtype = *dtype,
                            .shape = {tensor.shape, tensor.shape + tensor.dimensions},
                            .memory = {.kind = MemoryKind::kCuda, .device = tensor.device.id}},
                    .owner = py::reinterpret_borrow<py::object>(object),
                    .kind = this,
                    .stream = kDefaultStream,
                    .held = std::move(capsule)};
}

py::object CudaArrayKind::from_output(const TensorView& like,
                                      const std::vector<std::int64_t>& shape,
                                      std::shared_ptr<OutputBuffer> output) const {
  py::object made = py::cast(CudaArray{.dtype = like.ref.dtype,
                                       .shape = shape,
                                       .device = like.ref.memory.device,
                                       .memory = std::move(output)});
  const py::object cupy = cupy_of(like.owner);
  if (!cupy) {
    return made;
  }
  // Each in all releases of CuPy that know the dtype.
  return cupy.attr(like.ref.dtype == DataType::kBfloat16 ? "from_dlpack" : "asarray")(made);
}

// CuPy has a current stream of each thread and GPU, as torch has. Others name none.
std::optional<std::uintptr_t> CudaArrayKind::result_stream(const TensorView& view) const {
  const py::object cupy = cupy_of(view.owner);
  if (!cupy) {
    return std::nullopt;
  }
  try {
    const py::object get = cupy.attr("cuda").attr("get_current_stream");
    return get(view.ref.memory.device).attr("ptr").cast<std::uintptr_t>();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_AttributeError)) {
      throw;
    }
    return std::nullopt;  // Old releases of it cannot be asked about one GPU.
  }
}

}  // namespace

const TensorKind& cuda_array_kind() {
  static const CudaArrayKind kKind;
  return kKind;
}

}  // namespace lightcc::bindings
