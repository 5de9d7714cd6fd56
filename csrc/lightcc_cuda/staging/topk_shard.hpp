// The residual of one shard, in memory of a GPU, and what the host knows of it.
//
// Lanes are there twice, so that a step can be undone. Until the next step begins, those that are
// not current hold the other side of the last one, as those of TopkState do: what was before it, or
// what it would have made where it was rolled back. The step count, the threshold and whether there
// is a velocity go with a side. Of these the GPU has the current ones alone, and the host has both
// from reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lightcc/base/types.hpp"
#include "lightcc/compression/step_energy.hpp"
#include "lightcc/compression/topk_step.hpp"

#include "lightcc_cuda/driver/context.hpp"

namespace lightcc::cuda {

/// Jobs use it one after another, and between them whoever drives the progress loop.
struct TopkShard {
  /// What goes with lanes.
  struct Side {
    std::uint64_t step = 0;  ///< Committed steps.
    lightcc::detail::TopkForecast forecast;
    bool has_velocity = false;
  };

  DataType dtype = DataType::kFloat32;
  std::size_t numel = 0;
  std::optional<DeviceMemory> memory;    ///< Progress, and both residuals.
  std::optional<DeviceMemory> velocity;  ///< Both; none without momentum correction.

  Side now;                   ///< As committed.
  std::optional<Side> other;  ///< The lanes that are not current, where these hold a state.

  /// What became of the last step that was launched. The GPU is told with the next job.
  enum class Ending : std::uint8_t { kNotified, kCommitted, kUndone };
  Ending ending = Ending::kNotified;

  /// How far the last step that began has come, as the host knows it.
  enum class Course : std::uint8_t { kBegun, kLaunched, kReported };
  Course course = Course::kBegun;
  lightcc::detail::TopkForecast next_forecast;  ///< As reported.
  bool next_has_velocity = false;
  bool is_non_finite = false;  ///< As reported.
  StepEnergy energy;           ///< As reported.

  std::size_t lane_bytes() const { return dtype == DataType::kFloat64 ? 8 : 4; }

  // Called by whoever drives the progress loop, while no job runs. `now` and `other` change in no
  // other way.

  void begin(bool has_momentum);
  /// Commits a step that has begun. One that is not finite, or of which nothing is known, is rolled
  /// back instead.
  void commit();
  void rollback();

 private:
  Side next() const {
    return {.step = now.step + 1, .forecast = next_forecast, .has_velocity = next_has_velocity};
  }
};

}  // namespace lightcc::cuda
