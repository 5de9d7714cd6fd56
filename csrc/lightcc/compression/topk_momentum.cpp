// Who applies momentum to what is kept back: the state, or the optimizer that gets what is sent.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/float_types.hpp"
#include "lightcc/compression/topk_state.hpp"
#include "lightcc/compression/topk_state_impl.hpp"

namespace lightcc {
namespace {

/// Saturates: an infinite residual would void every step from then on.
template <typename Lane>
void store_finite(std::byte* at, double value) {
  constexpr double kMax = std::numeric_limits<Lane>::max();
  detail::store_as(at, static_cast<Lane>(std::clamp(value, -kMax, kMax)));
}

template <typename Lane>
[[gnu::noinline]] void take_over(const std::byte* residual,
                                 std::byte* velocity,
                                 std::size_t count,
                                 double momentum) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * sizeof(Lane);
    store_finite<Lane>(velocity + at, double{detail::load_as<Lane>(residual + at)} / momentum);
  }
}

template <typename Lane>
[[gnu::noinline]] void give_back(std::byte* residual,
                                 const std::byte* velocity,
                                 std::size_t count,
                                 double momentum) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * sizeof(Lane);
    const auto kept = double{detail::load_as<Lane>(residual + at)};
    const auto moving = double{detail::load_as<Lane>(velocity + at)};
    store_finite<Lane>(residual + at, (1.0 - momentum) * kept + momentum * moving);
  }
}

}  // namespace

Result<bool> TopkState::move_momentum(bool here, double momentum) {
  if (is_pending()) {
    return make_error(ErrorCode::kInternal,
                      "moving momentum while a step is neither committed nor rolled back");
  }
  if (!(momentum >= 0.0 && momentum < 1.0) || (here && momentum == 0.0)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a momentum of %g that compression %s: allowed is %s 0 up to below 1",
                      momentum,
                      here ? "takes over" : "gives back",
                      here ? "above" : "from");
  }
  if (here == has_velocity()) {
    return false;
  }
  const IeeeFloatMode mode;
  const bool wide = impl_->dtype == DataType::kFloat64;
  if (here) {
    detail::LanePair velocity(impl_->residual_bytes());
    const auto take = wide ? take_over<double> : take_over<float>;
    take(impl_->residual.current(), velocity.current(), impl_->numel, momentum);
    impl_->velocity = std::move(velocity);
    impl_->residual = detail::LanePair(impl_->residual_bytes());
  } else {
    const auto give = wide ? give_back<double> : give_back<float>;
    give(impl_->residual.current(), impl_->velocity.current(), impl_->numel, momentum);
    impl_->velocity = {};
  }
  impl_->forecast = {};  // What is left has other magnitudes.
  return true;
}

}  // namespace lightcc
