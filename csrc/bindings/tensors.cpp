#include "tensors.hpp"

#include <array>
#include <limits>

#include <pybind11/numpy.h>

#include "errors.hpp"

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

/// Splits that Python gave as anything but a torch tensor.
std::vector<std::int64_t> splits_by_numpy(py::handle object) {
  const py::array splits = py::array::ensure(object);
  if (!splits || splits.ndim() != 1) {
    PyErr_Clear();
    throw py::value_error("alltoall expects a 1D splits tensor");
  }
  const char kind = splits.dtype().kind();
  if (splits.size() != 0 && kind != 'i' && kind != 'u') {
    throw py::value_error("alltoall expects a splits tensor with 32-bit integer elements.");
  }
  const auto wide = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>(splits);
  return {wide.data(), wide.data() + wide.size()};
}

std::vector<std::int64_t> splits_of_torch(py::handle object) {
  const TensorView splits = torch_kind().view(object, Access::kRead);
  if (splits.ref.memory.kind != MemoryKind::kHost) {
    return splits_of_torch(object.attr("cpu")());
  }
  if (splits.ref.shape.size() != 1) {
    throw py::value_error("alltoall expects a 1D splits tensor");
  }
  if (splits.ref.dtype != DataType::kInt32) {
    throw py::value_error("alltoall expects a splits tensor with 32-bit integer elements.");
  }
  const auto* values = static_cast<const std::int32_t*>(splits.ref.data);
  return {values, values + splits.ref.shape[0]};
}

/// An array of another library in host memory. It is only read, as arrays of JAX never change.
TensorView view_by_numpy(py::handle object, Access access) {
  if (access == Access::kWrite) {
    throw_read_only();
  }
  // By DLPack, numpy takes no bfloat16.
  const char* const by = py::hasattr(object, "__array__") ? "asarray" : "from_dlpack";
  return numpy_kind().view(py::module_::import("numpy").attr(by)(object), access);
}

}  // namespace

TensorView to_tensor(py::handle object, Access access) {
  for (const TensorKind* kind :
       std::array{&numpy_kind(), &torch_kind(), &tensorflow_kind(), &cuda_array_kind()}) {
    if (kind->has(object)) {
      return kind->view(object, access);
    }
  }
  if (py::hasattr(object, "__dlpack__")) {
    return view_by_numpy(object, access);
  }
  throw py::type_error(
      "Tensor is required to be a numpy.ndarray, a torch.Tensor, a tensor or variable of "
      "TensorFlow, an array with __dlpack__, as JAX's, or an array in CUDA memory with "
      "__cuda_array_interface__, not " +
      std::string(Py_TYPE(object.ptr())->tp_name) + ".");
}

std::vector<std::int64_t> to_splits(py::handle object) {
  if (object.is_none()) {
    return {};
  }
  std::vector<std::int64_t> values =
      torch_kind().has(object) ? splits_of_torch(object) : splits_by_numpy(object);
  if (values.empty()) {
    throw py::value_error("Number of entries in splits does not equal number of workers.");
  }
  for (const std::int64_t value : values) {
    if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
      throw py::value_error(
          "alltoall expects a splits tensor with 32-bit integer elements, none negative; found " +
          std::to_string(value) + ".");
    }
  }
  return values;
}

void throw_not_contiguous() {
  throw py::value_error("Tensor is required to be contiguous.");
}

void throw_read_only() {
  throw py::value_error("Tensor is required to be writable: it receives the result.");
}

void throw_unsupported_dtype(const std::string& name) {
  throw py::value_error("Tensor type " + name + " is not supported.");
}

void check_aligned(const void* data, std::size_t element_bytes) {
  if (reinterpret_cast<std::uintptr_t>(data) % element_bytes != 0) {
    throw py::value_error("Tensor is required to be aligned to its element size.");
  }
}

std::size_t byte_count(DataType dtype, const std::vector<std::int64_t>& shape) {
  std::size_t bytes = element_size(dtype);
  for (const std::int64_t extent : shape) {
    bytes *= static_cast<std::size_t>(extent);
  }
  return bytes;
}

std::byte* output_data(DataType dtype,
                       const std::vector<std::int64_t>& shape,
                       const std::shared_ptr<OutputBuffer>& output) {
  const std::size_t bytes = byte_count(dtype, shape);
  if (bytes == 0) {
    return nullptr;
  }
  if (!output || output->size_bytes() < bytes) {
    throw_status(make_error(ErrorCode::kInternal,
                            "an output of %zu bytes was announced, but its buffer holds %zu",
                            bytes,
                            output ? output->size_bytes() : 0));
  }
  return output->data();
}

std::shared_ptr<OutputBuffer> splits_buffer(const std::vector<std::int64_t>& splits) {
  auto buffer = std::make_shared<OutputBuffer>(splits.size() * sizeof(std::int32_t));
  auto* values = reinterpret_cast<std::int32_t*>(buffer->data());
  for (std::size_t i = 0; i < splits.size(); ++i) {
    values[i] = static_cast<std::int32_t>(splits[i]);
  }
  return buffer;
}

}  // namespace lightcc::bindings
