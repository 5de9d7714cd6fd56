// Python's view of the GPUs of this machine.
#pragma once

#include <pybind11/pybind11.h>

namespace lightcc::bindings {

void register_gpus(pybind11::module_& module);

}  // namespace lightcc::bindings
