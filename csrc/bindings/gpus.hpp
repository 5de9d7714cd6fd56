// Python's view of the GPUs of this machine.
#pragma once

#include <pybind11/pybind11.h>

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/gpus.hpp"

namespace lightcc::bindings {

/// cuda::find_gpus(), which is asked until it finds some: they stay what they are. Thread: any.
Result<cuda::Gpus> gpus_of_process();

void register_gpus(pybind11::module_& module);

}  // namespace lightcc::bindings
