// What was saved of one tensor (TensorResidual::save()), as what it says; its state is not looked
// at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"

namespace lightcc {

/// More members of a block than any host has.
inline constexpr std::size_t kMaxMembers = std::size_t{1} << 20;

/// What a residual is of.
enum class ResidualOf : std::uint8_t {
  kShard = 0,  ///< This rank's shard of an all-reduced tensor.
  /// In a reduce-scatter, the rows that ranks with this one's position in other blocks get, in the
  /// order of the blocks.
  kScatteredRows = 1,
};
/// Elements of the residual, where the tensor has so many.
std::size_t residual_elements(ResidualOf of,
                              std::size_t elements,
                              const GridPosition& position,
                              DataType dtype);

struct SavedTensor {
  ResidualOf of = ResidualOf::kShard;
  GridPosition position;
  DataType dtype = DataType::kFloat32;
  std::size_t elements = 0;  ///< The tensor has so many.
  std::uint64_t steps = 0;
  double factor = 0.0;               ///< TensorResidual::send_factor.
  std::span<const std::byte> state;  ///< What ShardResidual::save() gave.
};

/// kInvalidArgument: "saved compression state", then `what`.
Status bad_saved_tensor(const char* what);

Bytes write_saved_tensor(const SavedTensor& saved);
/// The result points into `bytes`. kInvalidArgument: they are damaged, or of another version.
Result<SavedTensor> parse_saved_tensor(std::span<const std::byte> bytes);

/// What multiplies a residual of one factor where another one takes its place; nothing where it
/// stays.
std::optional<double> factor_change(double from, double to);

}  // namespace lightcc
