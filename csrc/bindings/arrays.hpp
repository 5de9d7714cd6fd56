// numpy arrays in and out of the engine, without copies.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "lightcc/engine/world.hpp"

namespace lightcc::bindings {

/// What the engine will do with an array's memory.
enum class Access : std::uint8_t { kRead, kWrite };

/// `object` as an array that the engine can use where it lies. A numpy scalar that is only read
/// becomes a new 0-dimensional array. Raises TypeError for other objects, ValueError for layouts
/// and dtypes that the engine does not know, each text naming what was found.
pybind11::array to_array(pybind11::handle object, Access access);

/// Sets `submission`'s dtype, shape and input from an array that to_array() returned.
void describe(const pybind11::array& array, Submission& submission);

/// An array over engine-allocated memory, which it keeps alive.
pybind11::array from_output(const pybind11::dtype& dtype,
                            const std::vector<std::int64_t>& shape,
                            std::shared_ptr<OutputBuffer> output);

/// Splits of an alltoall: a 1-D integer array or a sequence of integers; None is even splits
/// (empty).
std::vector<std::int64_t> to_splits(pybind11::handle object);
/// Splits as an int32 array.
pybind11::array from_splits(const std::vector<std::int64_t>& splits);

}  // namespace lightcc::bindings
