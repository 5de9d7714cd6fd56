#include "gpus.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include <pybind11/stl.h>

#include "errors.hpp"
#include "lightcc_cuda/driver/gpus.hpp"
#include "lightcc_cuda/measure/measure.hpp"
#include "lightcc_cuda/nccl/library.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace lightcc::bindings {
namespace {

py::dict find_gpus() {
  const cuda::Gpus found = value_or_throw([] {
    const py::gil_scoped_release nogil;
    return cuda::find_gpus();
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

py::list measure_gpu(int index,
                     const std::string& what,
                     const std::vector<std::size_t>& sizes,
                     std::size_t rounds,
                     std::size_t launches) {
  const std::vector<cuda::Measured> all = value_or_throw([&] {
    const py::gil_scoped_release nogil;
    return cuda::measure_gpu(index, what, sizes, {.rounds = rounds, .launches = launches});
  }());
  py::list rows;
  for (const cuda::Measured& measured : all) {
    rows.append(py::dict("name"_a = measured.name,
                         "elements"_a = measured.elements,
                         "bytes"_a = measured.bytes,
                         "seconds"_a = py::cast(measured.seconds),
                         "errors"_a = measured.errors,
                         "fits_cache"_a = measured.fits_cache,
                         "has_gaps"_a = measured.has_gaps));
  }
  return rows;
}

}  // namespace

void register_gpus(py::module_& module) {
  module.def("find_gpus", &find_gpus, "Returns the GPUs that the CUDA driver has.");
  module.def("try_gpu",
             &try_gpu,
             "index"_a,
             "Loads all kernels on a GPU and runs one of them, to see that it works.");
  module.def("measure_gpu",
             &measure_gpu,
             "index"_a,
             "what"_a,
             "sizes"_a,
             "rounds"_a,
             "launches"_a,
             "Measures kernels on a GPU, and compares what they make with what the CPU makes.");
  module.def("find_nccl", &find_nccl, "file"_a, "Returns the version of the NCCL that is found.");
}

}  // namespace lightcc::bindings
