// The life of a state: checks, pending steps, scaling. What a step does is in topk_step.cpp, saved
// states are in saved_shard.cpp.
#include "lightcc/compression/residual/host_residual.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/kernels/float_types.hpp"
#include "lightcc/compression/topk/list_writer.hpp"
#include "lightcc/compression/topk/topk_step.hpp"

namespace lightcc {
namespace {

Status pending_error(const char* what) {
  return make_error(ErrorCode::kInternal,
                    "%s while a step of top-k compression is neither committed nor rolled back",
                    what);
}

/// Lane `i` of an array of float32, or of float64 for float64.
double lane_at(DataType dtype, const std::byte* lanes, std::size_t i) {
  return dtype == DataType::kFloat64 ? detail::load_as<double>(lanes + i * sizeof(double))
                                     : double{detail::load_as<float>(lanes + i * sizeof(float))};
}

Status check_momentum(double momentum) {
  if (momentum >= 0.0 && momentum < 1.0) {
    return {};
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "a momentum of %g for top-k compression: allowed is 0 up to below 1",
                    momentum);
}

Status check_request(const TopkRequest& request, std::size_t numel) {
  const std::size_t minimum = numel == 0 ? 0 : 1;
  if (request.k < minimum || request.k > numel) {
    return make_error(ErrorCode::kInvalidArgument,
                      "top-k compression of %zu elements to %zu: allowed is %zu to %zu",
                      numel,
                      request.k,
                      minimum,
                      numel);
  }
  if (request.capacity < request.k || request.capacity > numel) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a capacity of %zu for %zu of %zu elements: allowed is %zu to %zu",
                      request.capacity,
                      request.k,
                      numel,
                      request.k,
                      numel);
  }
  return check_momentum(request.momentum);
}

/// Saturates: an infinite residual would have every step skipped from then on. In double, because a
/// factor that is no float would make NaN of a zero.
template <typename Lane>
[[gnu::noinline]] void scale_lanes(std::byte* lanes, std::size_t count, double factor) {
  constexpr double kMax = std::numeric_limits<Lane>::max();
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* at = lanes + i * sizeof(Lane);
    const double scaled = static_cast<double>(detail::load_as<Lane>(at)) * factor;
    detail::store_as(at, static_cast<Lane>(std::clamp(scaled, -kMax, kMax)));
  }
}

}  // namespace

HostResidual::HostResidual(DataType dtype, std::size_t numel) : dtype_(dtype), numel_(numel) {
  residual_ = detail::LanePair(residual_bytes());
}

detail::TopkStepJob HostResidual::begin(double momentum, SimdLevel level) {
  had_velocity_ = velocity_.exists();
  next_has_velocity_ = momentum != 0.0;
  if (next_has_velocity_ && !had_velocity_) {
    velocity_ = detail::LanePair(residual_bytes());
  }
  return {.dtype = dtype_,
          .numel = numel_,
          .step = step_,
          .momentum = momentum,
          .level = level,
          .residual = &residual_,
          .velocity = next_has_velocity_ ? &velocity_ : nullptr};
}

void HostResidual::measure(const std::byte* shard, const ShardRange& left_out) {
  energy_ = {};
  for (const ShardRange& range :
       {ShardRange{0, left_out.begin}, ShardRange{left_out.end, numel_}}) {
    measure_range(shard == nullptr ? nullptr : shard + range.begin * element_size(dtype_), range);
  }
}

void HostResidual::measure_range(const std::byte* in, const ShardRange& range) {
  const StepEnergy part = measure_energy(
      dtype_, in, residual_.next() + range.begin * lane_bytes(), range.size_elems(), step_);
  energy_.input += part.input;
  energy_.kept += part.kept;
}

double HostResidual::residual_at(std::size_t i) const {
  return lane_at(dtype_, residual_.current(), i);
}

double HostResidual::velocity_at(std::size_t i) const {
  return has_velocity() ? lane_at(dtype_, velocity_.current(), i) : 0.0;
}

Result<TopkOutcome> HostResidual::compress(const std::byte* shard,
                                           const TopkRequest& request,
                                           std::span<std::byte> out) {
  if (is_pending()) {
    return pending_error("compressing");
  }
  LIGHTCC_RETURN_IF_ERROR(check_request(request, numel_));
  const TopkFormat format{.dtype = dtype_, .fp16 = request.fp16, .two_bits = request.two_bits};
  const std::size_t needed = max_list_bytes(numel_, request.capacity, format);
  if (out.size() < needed) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a top-k list of up to %zu entries takes %zu bytes, there is room for %zu",
                      request.capacity,
                      needed,
                      out.size());
  }
  const detail::TopkStepJob job = begin(request.momentum, request.level);
  detail::ListWriter writer(out, numel_, request.capacity, format, 0);
  next_forecast_ = forecast_;
  const TopkOutcome outcome = detail::run_topk_step(job, shard, request, next_forecast_, writer);
  pending_ = outcome.non_finite ? Pending::kNonFinite : Pending::kFinite;
  measure(shard);
  return outcome;
}

Status HostResidual::flush_into(std::byte* shard, double momentum, SimdLevel level) {
  if (is_pending()) {
    return pending_error("flushing");
  }
  LIGHTCC_RETURN_IF_ERROR(check_momentum(momentum));
  const bool finite = detail::run_topk_flush(begin(momentum, level), shard);
  next_forecast_ = {};  // What is left, if anything, says nothing about the next step.
  pending_ = finite ? Pending::kFinite : Pending::kNonFinite;
  measure(shard);
  return {};
}

void HostResidual::commit() {
  if (pending_ != Pending::kFinite) {
    return rollback();
  }
  residual_.swap();
  if (next_has_velocity_) {
    velocity_.swap();
  } else {
    velocity_ = {};
  }
  forecast_ = next_forecast_;
  ++step_;
  pending_ = Pending::kNone;
}

void HostResidual::rollback() {
  if (is_pending() && !had_velocity_) {
    velocity_ = {};
  }
  pending_ = Pending::kNone;
}

Status HostResidual::scale(double factor) {
  if (is_pending()) {
    return pending_error("scaling");
  }
  if (!(factor > 0.0) || !std::isfinite(factor)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a residual cannot be scaled by %g: allowed is a finite number above 0",
                      factor);
  }
  const IeeeFloatMode mode;
  for (detail::LanePair* lanes : {&residual_, &velocity_}) {
    if (!lanes->exists()) {
      continue;
    }
    if (dtype_ == DataType::kFloat64) {
      scale_lanes<double>(lanes->current(), numel_, factor);
    } else {
      scale_lanes<float>(lanes->current(), numel_, factor);
    }
  }
  const double maximum = dtype_ == DataType::kFloat64 ? std::numeric_limits<double>::max()
                                                      : double{std::numeric_limits<float>::max()};
  for (double* magnitude : {&forecast_.threshold, &forecast_.ideal}) {
    *magnitude = std::min(*magnitude * factor, maximum);
  }
  return {};
}

}  // namespace lightcc
