#include "lightcc/fusion/cost_line.hpp"

#include <algorithm>

namespace lightcc {
namespace {

// What is left of a sample's weight after each later one: a few hundred count.
constexpr double kRemembered = 0.995;
// Times below a clock's resolution do not weigh more than this.
constexpr double kMinSeconds = 1e-7;

}  // namespace

void CostLine::add(double bytes, double seconds) {
  const double y = std::max(seconds, kMinSeconds);
  const double w = 1 / (y * y);
  const auto take = [](double& sum, double value) { sum = kRemembered * sum + value; };
  take(weight_, w);
  take(x_, w * bytes);
  take(y_, w * y);
  take(xx_, w * bytes * bytes);
  take(xy_, w * bytes * y);
  ++samples_;
}

CostLine::Fit CostLine::fit() const {
  if (samples_ == 0) {
    return {};
  }
  const double determinant = weight_ * xx_ - x_ * x_;
  // Relative to its terms: what rounding leaves where all samples have one size.
  if (determinant <= 1e-9 * weight_ * xx_) {
    return {y_ / weight_, 0};
  }
  const double slope = (weight_ * xy_ - x_ * y_) / determinant;
  const double fixed = (y_ * xx_ - x_ * xy_) / determinant;
  if (slope < 0) {
    return {y_ / weight_, 0};
  }
  if (fixed < 0) {
    return {0, xy_ / xx_};
  }
  return {fixed, slope};
}

}  // namespace lightcc
