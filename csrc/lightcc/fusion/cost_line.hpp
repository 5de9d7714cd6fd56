// What a collective of some bytes takes, learnt from those that ran: seconds = fixed + per byte.
//
// Weighted least squares over all samples, kept as five sums that forget slowly, so that adding
// one costs a few additions. Each sample weighs as the inverse square of its time: errors count in
// proportion, or the few large collectives alone would decide about the many small ones. That also
// favours the shorter of two samples of a size, rightly: waiting for a late rank only ever adds.
#pragma once

#include <cstdint>

namespace lightcc {

class CostLine {
 public:
  /// hot
  void add(double bytes, double seconds);

  std::uint64_t samples() const { return samples_; }
  struct Fit {
    double seconds = 0;  ///< What a bucket without bytes takes. Neither is negative.
    double seconds_per_byte = 0;
  };
  /// Zeros without samples. Samples of one size only tell nothing of a slope: it is then 0.
  Fit fit() const;

 private:
  std::uint64_t samples_ = 0;
  double weight_ = 0;  // Sums of w, w*x, w*y, w*x*x, w*x*y.
  double x_ = 0;
  double y_ = 0;
  double xx_ = 0;
  double xy_ = 0;
};

}  // namespace lightcc
