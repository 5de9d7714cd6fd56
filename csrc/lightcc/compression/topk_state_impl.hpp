// What a TopkState is made of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/compression/lane_pair.hpp"
#include "lightcc/compression/topk_state.hpp"
#include "lightcc/compression/topk_step.hpp"

namespace lightcc {

struct TopkState::Impl {
  enum class Pending : std::uint8_t { kNone, kFinite, kNonFinite };

  std::size_t lane_bytes() const { return dtype == DataType::kFloat64 ? 8 : 4; }
  std::size_t residual_bytes() const { return numel * lane_bytes(); }

  /// A step on this state. Makes the velocity where one is needed for the first time.
  detail::TopkStepJob job(double scale, double momentum, SimdLevel level) {
    had_velocity = velocity.exists();
    next_has_velocity = momentum != 0.0;
    if (next_has_velocity && !had_velocity) {
      velocity = detail::LanePair(residual_bytes());
    }
    return {.dtype = dtype,
            .numel = numel,
            .step = step,
            .scale = scale,
            .momentum = momentum,
            .level = level,
            .residual = &residual,
            .velocity = next_has_velocity ? &velocity : nullptr};
  }

  DataType dtype = DataType::kFloat32;
  std::size_t numel = 0;
  std::uint64_t step = 0;
  detail::TopkForecast forecast;
  detail::LanePair residual;
  detail::LanePair velocity;  ///< Exists with momentum correction.

  /// All but the elements of `left_out`.
  void measure(const std::byte* shard, const ShardRange& left_out = {}) {
    energy = {};
    for (const ShardRange& range :
         {ShardRange{0, left_out.begin}, ShardRange{left_out.end, numel}}) {
      const std::byte* from =
          shard == nullptr ? nullptr : shard + range.begin * element_size(dtype);
      const StepEnergy part = measure_energy(
          dtype, from, residual.next() + range.begin * lane_bytes(), range.size_elems(), step);
      energy.input += part.input;
      energy.kept += part.kept;
    }
  }

  Pending pending = Pending::kNone;
  StepEnergy energy;
  detail::TopkForecast next_forecast;

  bool had_velocity = false;
  bool next_has_velocity = false;
};

}  // namespace lightcc
