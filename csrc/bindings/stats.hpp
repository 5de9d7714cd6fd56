// What Python sees of WorldStats.
#pragma once

#include <pybind11/pybind11.h>

#include "world_binding.hpp"

namespace lightcc::bindings {

/// Every number of the table by its name, and the lists.
pybind11::dict stats(WorldBinding& world);

/// Adds the table of numbers to a module.
void register_stats(pybind11::module_& module);

}  // namespace lightcc::bindings
