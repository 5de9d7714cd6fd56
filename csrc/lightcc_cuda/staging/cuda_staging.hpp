// CUDA memory for the engine: tensors are copied to pinned host memory and back, so that every
// collective works on them. Not yet run on hardware.
#pragma once

#include <memory>
#include <string>

#include "lightcc/base/export.hpp"
#include "lightcc/engine/staged/staging.hpp"

#include "lightcc_cuda/driver/driver.hpp"

namespace lightcc::cuda {

/// The driver is opened, and a GPU's context retained, when a first tensor of it is copied. Errors
/// of that are the Works'. Host memory that it hands out goes before it does. `file`: the driver's.
LIGHTCC_EXPORT std::shared_ptr<Staging> make_staging(std::string file = kDriverFile);

}  // namespace lightcc::cuda
