// Turns the engine's Status into Python exceptions: one class for each ErrorCode.
#pragma once

#include <utility>

#include <pybind11/pybind11.h>

#include "lightcc/base/status.hpp"

namespace lightcc::bindings {

/// Raises the exception of `status`, which must not be ok. Needs the GIL.
[[noreturn]] void throw_status(const Status& status);

inline void throw_if_error(const Status& status) {
  if (!status.ok()) {
    throw_status(status);
  }
}

template <typename T>
T value_or_throw(Result<T> result) {
  throw_if_error(result.status());
  return std::move(result).value();
}

void register_errors(pybind11::module_& module);

}  // namespace lightcc::bindings
