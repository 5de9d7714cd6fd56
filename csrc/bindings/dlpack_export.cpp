#include "dlpack_export.hpp"

namespace py = pybind11;

namespace lightcc::bindings::dlpack {

py::object to_capsule(std::unique_ptr<Export<ManagedTensor>> made) {
  auto capsule = py::reinterpret_steal<py::object>(
      PyCapsule_New(&made->managed, "dltensor", [](PyObject* unused) {
        if (PyCapsule_IsValid(unused, "dltensor") != 0) {
          auto* managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(unused, "dltensor"));
          managed->deleter(managed);
        }
      }));
  if (!capsule) {
    throw py::error_already_set();
  }
  static_cast<void>(made.release());
  return capsule;
}

}  // namespace lightcc::bindings::dlpack
