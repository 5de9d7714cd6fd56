// What tests may say about how torch tensors are read.
#pragma once

#include <pybind11/pybind11.h>

namespace lightcc::bindings {

void register_torch_tensors(pybind11::module_& module);

}  // namespace lightcc::bindings
