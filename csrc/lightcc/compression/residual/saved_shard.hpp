// The bytes of a saved HostResidual as what they say, for states that are not in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/compression/topk/topk_step.hpp"

namespace lightcc {

/// Lanes are float64 for float64, and float32 else.
struct SavedShard {
  DataType dtype = DataType::kFloat32;
  std::size_t numel = 0;
  std::uint64_t step = 0;
  detail::TopkForecast forecast;
  std::span<const std::byte> residual;  ///< A lane for each element.
  std::span<const std::byte> velocity;  ///< The same; empty without one.
  bool has_velocity = false;
};

/// What save() wrote, which the result points into. Errors: of HostResidual::load().
LIGHTCC_EXPORT Result<SavedShard> parse_saved_shard(std::span<const std::byte> bytes);
/// Appends what HostResidual::save() writes.
LIGHTCC_EXPORT void write_saved_shard(const SavedShard& saved, Bytes& out);

}  // namespace lightcc
