// Everything that is known about numpy in lightcc's C++: dtype, layout and ownership.
//
// Arrays are taken as they lie: C-contiguous, aligned, in native byte order. bfloat16 is a dtype
// that a package (ml_dtypes) registers with numpy at run time, so it is known by its name only;
// results get the dtype object of the input and need no such knowledge. A numpy scalar that is only
// read becomes a new 0-dimensional array. Not handled: copying what does not fit.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/numpy.h>

#include "tensors.hpp"

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

/// numpy numbers dtypes that packages register from here on.
constexpr int kFirstUserTypeNumber = 256;

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

class NumpyKind final : public TensorKind {
 public:
  bool has(py::handle object) const override;
  TensorView view(py::handle object, Access access) const override;
  py::object from_output(const TensorView& like,
                         const std::vector<std::int64_t>& shape,
                         std::shared_ptr<OutputBuffer> output) const override;
  std::optional<TensorView> make_output(const TensorView& like) const override;
  py::object from_splits(const std::vector<std::int64_t>& splits) const override;
};

bool NumpyKind::has(py::handle object) const {
  return py::isinstance<py::array>(object) || is_numpy_scalar(object);
}

TensorView NumpyKind::view(py::handle object, Access access) const {
  if (!py::isinstance<py::array>(object)) {
    if (access == Access::kWrite) {
      throw py::type_error("A numpy scalar (" + std::string(Py_TYPE(object.ptr())->tp_name) +
                           ") cannot receive a result; pass a numpy.ndarray.");
    }
    return view(py::module_::import("numpy").attr("asarray")(object), access);
  }
  auto array = py::reinterpret_borrow<py::array>(object);
  const int flags = array.flags();
  if ((flags & py::array::c_style) == 0) {
    throw_not_contiguous();
  }
  const py::dtype dtype = array.dtype();
  const std::optional<DataType> known = data_type(dtype);
  if (!known) {
    throw_unsupported_dtype(py::str(dtype).cast<std::string>());
  }
  check_aligned(array.data(), element_size(*known));
  if (access == Access::kWrite && !array.writeable()) {
    throw_read_only();
  }
  return {.ref = {.data = const_cast<void*>(array.data()),
                  .dtype = *known,
                  .shape = {array.shape(), array.shape() + array.ndim()}},
          .owner = std::move(array),
          .kind = this};
}

py::object NumpyKind::from_output(const TensorView& like,
                                  const std::vector<std::int64_t>& shape,
                                  std::shared_ptr<OutputBuffer> output) const {
  const py::dtype dtype = py::reinterpret_borrow<py::array>(like.owner).dtype();
  const std::byte* data = output_data(like.ref.dtype, shape, output);
  if (data == nullptr) {
    return py::array(dtype, shape);
  }
  auto owner = std::make_unique<std::shared_ptr<OutputBuffer>>(std::move(output));
  const py::capsule capsule(owner.get(), [](void* pointer) {
    const std::unique_ptr<std::shared_ptr<OutputBuffer>> released(
        static_cast<std::shared_ptr<OutputBuffer>*>(pointer));
  });
  static_cast<void>(owner.release());
  return py::array(dtype, shape, data, capsule);
}

std::optional<TensorView> NumpyKind::make_output(const TensorView& like) const {
  const auto array = py::reinterpret_borrow<py::array>(like.owner);
  py::array made(array.dtype(), like.ref.shape);
  TensorView view{.ref = like.ref, .owner = std::move(made), .kind = this};
  view.ref.data = py::reinterpret_borrow<py::array>(view.owner).mutable_data();
  return view;
}

py::object NumpyKind::from_splits(const std::vector<std::int64_t>& splits) const {
  py::array_t<std::int32_t> array(static_cast<py::ssize_t>(splits.size()));
  auto values = array.mutable_unchecked<1>();
  for (std::size_t i = 0; i < splits.size(); ++i) {
    values(static_cast<py::ssize_t>(i)) = static_cast<std::int32_t>(splits[i]);
  }
  return array;
}

}  // namespace

std::optional<DataType> builtin_data_type(char kind, std::ptrdiff_t bytes) {
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
      return bytes == 1 ? std::optional(DataType::kBool) : std::nullopt;
    default:
      return std::nullopt;
  }
}

const TensorKind& numpy_kind() {
  static const NumpyKind kKind;
  return kKind;
}

}  // namespace lightcc::bindings
