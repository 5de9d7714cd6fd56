// The residual of one shard, in memory of a GPU, and what the host knows of it.
//
// Lanes are there twice, so that a step can be undone. The step count, the threshold and whether
// there is a velocity are the GPU's, and the host has them from reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lightcc/base/types.hpp"
#include "lightcc/compression/residual/step_energy.hpp"
#include "lightcc/compression/topk/topk_step.hpp"

namespace lightcc::cuda {

/// Jobs use it one after another, and between them whoever drives the progress loop.
struct TopkShard {
  DataType dtype = DataType::kFloat32;
  std::size_t numel = 0;
  // Both come and go in the order of the stream of its jobs.
  std::shared_ptr<std::byte> memory;    ///< Progress, and both residuals.
  std::shared_ptr<std::byte> velocity;  ///< Both; none without momentum correction.

  // As committed.
  std::uint64_t step = 0;  ///< Committed steps.
  lightcc::detail::TopkForecast forecast;
  bool has_velocity = false;
  bool is_commit_due = false;  ///< The GPU has not been told; it is with the next job.

  // The last step that began.
  bool next_has_velocity = false;
  bool is_reported = false;
  lightcc::detail::TopkForecast next_forecast;  ///< As reported, as is what follows.
  bool is_non_finite = false;
  StepEnergy energy;

  std::size_t lane_bytes() const { return dtype == DataType::kFloat64 ? 8 : 4; }

  // Called by whoever drives the progress loop, while no job runs.

  void begin(bool has_momentum) {
    next_has_velocity = has_momentum;
    is_reported = false;
  }
  /// Commits a step that has begun. Does nothing where it is not finite, or nothing is known of it.
  void commit() {
    if (!is_reported || is_non_finite) {
      return;
    }
    ++step;
    forecast = next_forecast;
    has_velocity = next_has_velocity;
    is_commit_due = true;
  }
};

}  // namespace lightcc::cuda
