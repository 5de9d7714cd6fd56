// Results in CUDA memory for whoever has no tensors that lightcc can make: an object that array
// libraries take without a copy.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <pybind11/pybind11.h>

#include "lightcc/engine/operation.hpp"

namespace lightcc::bindings {

/// Memory of a GPU, and what lies there. It holds its values: no stream is to be waited for.
struct CudaArray {
  DataType dtype = DataType::kFloat32;
  std::vector<std::int64_t> shape;
  std::int32_t device = 0;
  std::shared_ptr<OutputBuffer> memory;
};

void register_cuda_array(const pybind11::module_& module);

}  // namespace lightcc::bindings
