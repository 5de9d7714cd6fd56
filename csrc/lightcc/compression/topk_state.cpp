// The life of a state: checks, pending steps, scaling. What a step does is in topk_step.cpp, saved
// states are in topk_saved.cpp.
#include "lightcc/compression/topk_state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/float_types.hpp"
#include "lightcc/compression/list_writer.hpp"
#include "lightcc/compression/topk_state_impl.hpp"
#include "lightcc/compression/topk_step.hpp"

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

/// Saturates: an infinite residual would void every step from then on. In double, because a factor
/// that is no float would make NaN of a zero.
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

TopkState::TopkState(DataType dtype, std::size_t numel) : impl_(std::make_unique<Impl>()) {
  impl_->dtype = dtype;
  impl_->numel = numel;
  impl_->residual = detail::LanePair(impl_->residual_bytes());
}

TopkState::TopkState(TopkState&&) noexcept = default;
TopkState& TopkState::operator=(TopkState&&) noexcept = default;
TopkState::~TopkState() = default;

DataType TopkState::dtype() const {
  return impl_->dtype;
}

std::size_t TopkState::numel() const {
  return impl_->numel;
}

std::uint64_t TopkState::step() const {
  return impl_->step;
}

double TopkState::threshold() const {
  return impl_->forecast.threshold;
}

bool TopkState::has_velocity() const {
  return impl_->velocity.exists();
}

StepEnergy TopkState::energy() const {
  return impl_->energy;
}

bool TopkState::is_pending() const {
  return impl_->pending != Impl::Pending::kNone;
}

double TopkState::residual_at(std::size_t i) const {
  return lane_at(impl_->dtype, impl_->residual.current(), i);
}

double TopkState::velocity_at(std::size_t i) const {
  return has_velocity() ? lane_at(impl_->dtype, impl_->velocity.current(), i) : 0.0;
}

Result<TopkOutcome> TopkState::compress(const std::byte* shard,
                                        double input_scale,
                                        const TopkRequest& request,
                                        std::span<std::byte> out) {
  if (is_pending()) {
    return pending_error("compressing");
  }
  LIGHTCC_RETURN_IF_ERROR(check_request(request, impl_->numel));
  const TopkFormat format{.dtype = impl_->dtype, .fp16 = request.fp16};
  const std::size_t needed = max_list_bytes(impl_->numel, request.capacity, format);
  if (out.size() < needed) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a top-k list of up to %zu entries takes %zu bytes, there is room for %zu",
                      request.capacity,
                      needed,
                      out.size());
  }
  const detail::TopkStepJob job = impl_->job(input_scale, request.momentum, request.level);
  detail::ListWriter writer(out, impl_->numel, request.capacity, format, 0);
  impl_->next_forecast = impl_->forecast;
  const TopkOutcome outcome =
      detail::run_topk_step(job, shard, request, impl_->next_forecast, writer);
  impl_->pending = outcome.non_finite ? Impl::Pending::kNonFinite : Impl::Pending::kFinite;
  impl_->measure(shard);
  return outcome;
}

Status TopkState::flush_into(std::byte* shard,
                             double input_scale,
                             double momentum,
                             SimdLevel level) {
  if (is_pending()) {
    return pending_error("flushing");
  }
  LIGHTCC_RETURN_IF_ERROR(check_momentum(momentum));
  const bool finite = detail::run_topk_flush(impl_->job(input_scale, momentum, level), shard);
  impl_->next_forecast = {};  // What is left, if anything, says nothing about the next step.
  impl_->pending = finite ? Impl::Pending::kFinite : Impl::Pending::kNonFinite;
  impl_->measure(shard);
  return {};
}

void TopkState::commit() {
  if (impl_->pending != Impl::Pending::kFinite) {
    return rollback();
  }
  impl_->residual.swap();
  if (impl_->next_has_velocity) {
    impl_->velocity.swap();
  } else {
    impl_->velocity = {};
  }
  impl_->forecast = impl_->next_forecast;
  ++impl_->step;
  impl_->pending = Impl::Pending::kNone;
}

void TopkState::rollback() {
  if (is_pending() && !impl_->had_velocity) {
    impl_->velocity = {};
  }
  impl_->pending = Impl::Pending::kNone;
}

Status TopkState::scale(double factor) {
  if (is_pending()) {
    return pending_error("scaling");
  }
  if (!(factor > 0.0) || !std::isfinite(factor)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a residual cannot be scaled by %g: allowed is a finite number above 0",
                      factor);
  }
  const IeeeFloatMode mode;
  for (detail::LanePair* lanes : {&impl_->residual, &impl_->velocity}) {
    if (!lanes->exists()) {
      continue;
    }
    if (impl_->dtype == DataType::kFloat64) {
      scale_lanes<double>(lanes->current(), impl_->numel, factor);
    } else {
      scale_lanes<float>(lanes->current(), impl_->numel, factor);
    }
  }
  const double maximum = impl_->dtype == DataType::kFloat64
                             ? std::numeric_limits<double>::max()
                             : double{std::numeric_limits<float>::max()};
  for (double* magnitude : {&impl_->forecast.threshold, &impl_->forecast.ideal}) {
    *magnitude = std::min(*magnitude * factor, maximum);
  }
  return {};
}

}  // namespace lightcc
