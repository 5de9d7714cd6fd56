// Python's view of top-k compression: what is asked for, and what is remembered.
#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include "world_binding.hpp"

namespace lightcc::bindings {

void register_compression(pybind11::module_& module,
                          pybind11::class_<WorldBinding, std::shared_ptr<WorldBinding>>& world);

}  // namespace lightcc::bindings
