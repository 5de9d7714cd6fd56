// Everything that is known about numpy in lightcc's C++: dtype, layout and ownership.
//
// Arrays are taken as they lie: C-contiguous, aligned, in native byte order. bfloat16 is a dtype
// that a package (ml_dtypes) registers with numpy at run time, so it is known by its name only;
// results get the dtype object of the input and need no such knowledge. Not handled: copying what
// does not fit.
#include "arrays.hpp"

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "errors.hpp"

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

/// numpy numbers dtypes that packages register from here on.
constexpr int kFirstUserTypeNumber = 256;

std::optional<DataType> builtin_data_type(char kind, py::ssize_t bytes) {
  switch (kind) {
    case 'f':
      return bytes == 4   ? std::optional(DataType::kFloat32)
             : bytes == 8 ? std::optional(DataType::kFloat64)
             : bytes == 2 ? std::optional(DataType::kFloat16)
                          : std::nullopt;
    case 'i':
      return bytes == 8   ? std::optional(DataType::kInt64)
             : bytes == 4 ? std::optional(DataType::kInt32)
             : bytes == 2 ? std::optional(DataType::kInt16)
             : bytes == 1 ? std::optional(DataType::kInt8)
                          : std::nullopt;
    case 'u':
      return bytes == 1   ? std::optional(DataType::kUint8)
             : bytes == 2 ? std::optional(DataType::kUint16)
                          : std::nullopt;
    case 'b':
      return DataType::kBool;
    default:
      return std::nullopt;
  }
}

std::optional<DataType> data_type(const py::dtype& dtype) {
  if (dtype.num() >= kFirstUserTypeNumber) {
    const bool is_bfloat16 =
        dtype.itemsize() == 2 && dtype.attr("name").cast<std::string>() == "bfloat16";
    return is_bfloat16 ? std::optional(DataType::kBfloat16) : std::nullopt;
  }
  if (dtype.byteorder() == '>') {
    return std::nullopt;
  }
  return builtin_data_type(dtype.kind(), dtype.itemsize());
}

bool is_numpy_scalar(py::handle object) {
  return py::isinstance(object, py::module_::import("numpy").attr("generic"));
}

}  // namespace

py::array to_array(py::handle object, Access access) {
  if (!py::isinstance<py::array>(object)) {
    if (access == Access::kRead && is_numpy_scalar(object)) {
      return py::module_::import("numpy").attr("asarray")(object).cast<py::array>();
    }
    throw py::type_error("Tensor is required to be a numpy.ndarray, not " +
                         std::string(Py_TYPE(object.ptr())->tp_name) + ".");
  }
  auto array = py::reinterpret_borrow<py::array>(object);
  const int flags = array.flags();
  if ((flags & py::array::c_style) == 0) {
    throw py::value_error("Tensor is required to be contiguous.");
  }
  if ((flags & py::detail::npy_api::NPY_ARRAY_ALIGNED_) == 0) {
    throw py::value_error("Tensor is required to be aligned to its element size.");
  }
  if (access == Access::kWrite && !array.writeable()) {
    throw py::value_error("Tensor is required to be writable: it receives the result.");
  }
  return array;
}

void describe(const py::array& array, Submission& submission) {
  const py::dtype dtype = array.dtype();
  const std::optional<DataType> known = data_type(dtype);
  if (!known) {
    throw py::value_error("Tensor type " + py::str(dtype).cast<std::string>() +
                          " is not supported.");
  }
  submission.dtype = *known;
  submission.shape.assign(array.shape(), array.shape() + array.ndim());
  submission.input = array.data();
}

py::array from_output(const py::dtype& dtype,
                      const std::vector<std::int64_t>& shape,
                      std::shared_ptr<OutputBuffer> output) {
  auto bytes = static_cast<std::size_t>(dtype.itemsize());
  for (const std::int64_t extent : shape) {
    bytes *= static_cast<std::size_t>(extent);
  }
  if (bytes == 0) {
    return {dtype, shape};
  }
  if (!output || output->size_bytes() < bytes) {
    throw_status(make_error(ErrorCode::kInternal,
                            "an output of %zu bytes was announced, but its buffer holds %zu",
                            bytes,
                            output ? output->size_bytes() : 0));
  }
  auto owner = std::make_unique<std::shared_ptr<OutputBuffer>>(std::move(output));
  const std::byte* data = (*owner)->data();
  const py::capsule capsule(owner.get(), [](void* pointer) {
    const std::unique_ptr<std::shared_ptr<OutputBuffer>> released(
        static_cast<std::shared_ptr<OutputBuffer>*>(pointer));
  });
  static_cast<void>(owner.release());
  return {dtype, shape, data, capsule};
}

std::vector<std::int64_t> to_splits(py::handle object) {
  if (object.is_none()) {
    return {};
  }
  const py::array splits = py::array::ensure(object);
  if (!splits || splits.ndim() != 1) {
    PyErr_Clear();
    throw py::value_error("alltoall expects a 1D splits tensor");
  }
  if (splits.size() == 0) {
    throw py::value_error("Number of entries in splits does not equal number of workers.");
  }
  const char kind = splits.dtype().kind();
  if (kind != 'i' && kind != 'u') {
    throw py::value_error("alltoall expects a splits tensor with 32-bit integer elements.");
  }
  const auto wide = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>(splits);
  std::vector<std::int64_t> values(wide.data(), wide.data() + wide.size());
  for (const std::int64_t value : values) {
    if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
      throw py::value_error(
          "alltoall expects a splits tensor with 32-bit integer elements, none negative; found " +
          std::to_string(value) + ".");
    }
  }
  return values;
}

py::array from_splits(const std::vector<std::int64_t>& splits) {
  py::array_t<std::int32_t> array(static_cast<py::ssize_t>(splits.size()));
  auto values = array.mutable_unchecked<1>();
  for (std::size_t i = 0; i < splits.size(); ++i) {
    values(static_cast<py::ssize_t>(i)) = static_cast<std::int32_t>(splits[i]);
  }
  return array;
}

}  // namespace lightcc::bindings
