#include "cuda_array.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

#include <pybind11/stl.h>

#include "dlpack_export.hpp"
#include "world_binding.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace lightcc::bindings {
namespace {

/// numpy's word for a dtype; null: there is none for bfloat16.
const char* typestr_of(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
      return "|u1";
    case DataType::kInt8:
      return "|i1";
    case DataType::kUint16:
      return "<u2";
    case DataType::kInt16:
      return "<i2";
    case DataType::kInt32:
      return "<i4";
    case DataType::kInt64:
      return "<i8";
    case DataType::kFloat16:
      return "<f2";
    case DataType::kFloat32:
      return "<f4";
    case DataType::kFloat64:
      return "<f8";
    case DataType::kBool:
      return "|b1";
    case DataType::kBfloat16:
      break;
  }
  return nullptr;
}

const std::byte* data_of(const CudaArray& array) {
  return output_data(array.dtype, array.shape, array.memory);
}

py::dict to_interface(const CudaArray& array) {
  const char* const typestr = typestr_of(array.dtype);
  if (typestr == nullptr) {
    throw py::attribute_error(
        "__cuda_array_interface__ has no word for bfloat16: use DLPack, as in from_dlpack()");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(data_of(array));
  return py::dict("shape"_a = py::tuple(py::cast(array.shape)),
                  "typestr"_a = typestr,
                  "data"_a = py::make_tuple(address, false),
                  "strides"_a = py::none(),
                  "stream"_a = py::none(),
                  "version"_a = 3);
}

py::tuple device_of(const CudaArray& array) {
  return py::make_tuple(dlpack::kCuda, array.device);
}

/// `stream` and `max_version` have no say: no stream has to wait, and capsules of DLPack's first
/// kind are what every reader takes.
py::object to_dlpack(const CudaArray& array,
                     const py::object& /*stream*/,
                     const py::object& /*max_version*/,
                     const py::object& device,
                     const py::object& copy) {
  const bool elsewhere = !device.is_none() && !device.equal(device_of(array));
  if (elsewhere || (!copy.is_none() && copy.cast<bool>())) {
    throw py::buffer_error("a CudaArray is handed over where it lies, on cuda:" +
                           std::to_string(array.device) + ", and not copied");
  }
  return dlpack::to_capsule(dlpack::make_export<dlpack::ManagedTensor>(
      array.dtype,
      array.shape,
      array.memory,
      Memory{.kind = MemoryKind::kCuda, .device = array.device}));
}

}  // namespace

void register_cuda_array(const py::module_& module) {
  py::class_<CudaArray>(module,
                        "CudaArray",
                        plain_type(),
                        "A result in CUDA memory, for from_dlpack() or asarray() of a library.")
      .def_property_readonly(
          "shape", [](const CudaArray& array) { return py::tuple(py::cast(array.shape)); })
      .def_property_readonly(
          "dtype", [](const CudaArray& array) { return std::string(data_type_name(array.dtype)); })
      .def_property_readonly("device", [](const CudaArray& array) { return array.device; })
      .def_property_readonly("__cuda_array_interface__", &to_interface)
      .def("__dlpack_device__", &device_of)
      .def("__dlpack__",
           &to_dlpack,
           py::kw_only(),
           "stream"_a = py::none(),
           "max_version"_a = py::none(),
           "dl_device"_a = py::none(),
           "copy"_a = py::none());
}

}  // namespace lightcc::bindings
