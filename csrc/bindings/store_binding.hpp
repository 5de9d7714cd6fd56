// Python's view of the rendezvous store: its server, and a client of one's own.
#pragma once

#include <pybind11/pybind11.h>

namespace lightcc::bindings {

void register_store(const pybind11::module_& module);

}  // namespace lightcc::bindings
