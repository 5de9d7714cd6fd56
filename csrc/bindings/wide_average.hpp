// Averages of integers of one byte: their sum rarely fits into one, so it is taken of wider ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lightcc/engine/operation.hpp"

namespace lightcc::bindings {

/// What travels in the place of a tensor.
struct WideAverage {
  std::size_t index = 0;  ///< The place of its operation in the call.
  std::vector<std::int32_t> values;
  TensorRef target;  ///< Where the averages go; without memory: a new buffer.
};

/// Has an average of int8 or uint8 in host memory travel as int32; nothing for other operations.
/// The result is to be kept until the operation is done.
std::optional<WideAverage> widen(Operation& operation);

/// Puts the averages where the caller looks for them. `outcome` is the operation's.
void narrow(const WideAverage& wide, Outcome& outcome);

}  // namespace lightcc::bindings
