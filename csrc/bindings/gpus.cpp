#include "gpus.hpp"

#include <optional>
#include <string>

#include <pybind11/stl.h>

#include "lightcc/base/mutex.hpp"

#include "errors.hpp"
#include "lightcc_cuda/driver/gpus.hpp"
#include "lightcc_cuda/nccl/library.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace lightcc::bindings {
namespace {

py::dict find_gpus() {
  const cuda::Gpus found = value_or_throw([] {
    const py::gil_scoped_release nogil;
    return gpus_of_process();
  }());
  py::list gpus;
  for (const cuda::Gpu& gpu : found.list) {
    gpus.append(py::dict("name"_a = gpu.name,
                         "capability"_a = py::make_tuple(gpu.major, gpu.minor),
                         "bytes"_a = gpu.bytes,
                         "pci_bus_id"_a = gpu.pci_bus_id,
                         "uuid"_a = gpu.uuid,
                         "is_slice"_a = gpu.is_slice,
                         "peers"_a = py::cast(gpu.peers),
                         "is_precompiled"_a = gpu.is_precompiled,
                         "objection"_a = gpu.objection));
  }
  return py::dict("driver_version"_a = found.driver_version, "gpus"_a = gpus);
}

int find_nccl(const std::string& file) {
  return value_or_throw([&file] {
    const py::gil_scoped_release nogil;
    return cuda::find_nccl(file);
  }());
}

void try_gpu(int index) {
  throw_if_error([index] {
    const py::gil_scoped_release nogil;
    return cuda::try_gpu(index);
  }());
}

}  // namespace

// A driver that was not there, or had no GPU, is asked again.
Result<cuda::Gpus> gpus_of_process() {
  static Mutex mutex;
  static std::optional<cuda::Gpus> known;
  const MutexLock lock(mutex);
  if (!known.has_value()) {
    LIGHTCC_ASSIGN_OR_RETURN(known, cuda::find_gpus());
  }
  return *known;
}

void register_gpus(py::module_& module) {
  module.def("find_gpus", &find_gpus, "Returns the GPUs that the CUDA driver has.");
  module.def("try_gpu",
             &try_gpu,
             "index"_a,
             "Loads all kernels on a GPU and runs one of them, to see that it works.");
  module.def("find_nccl", &find_nccl, "file"_a, "Returns the version of the NCCL that is found.");
}

}  // namespace lightcc::bindings
