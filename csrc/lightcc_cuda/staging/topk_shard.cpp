// What TopkState's commit() and rollback() do, as far as the host takes part in it.
#include "lightcc_cuda/staging/topk_shard.hpp"

namespace lightcc::cuda {

void TopkShard::begin(bool has_momentum) {
  other.reset();  // Its lanes are written now.
  course = Course::kBegun;
  next_has_velocity = has_momentum;
}

void TopkShard::commit() {
  if (course != Course::kReported || is_non_finite) {
    return rollback();
  }
  const Side before = now;
  now = next();
  if (now.has_velocity || !before.has_velocity) {
    other = before;
  }
  ending = Ending::kCommitted;
}

void TopkShard::rollback() {
  if (course == Course::kBegun) {
    return;  // How the step before has ended still counts.
  }
  // A velocity that is on one side alone goes.
  if (course == Course::kReported && !is_non_finite && (now.has_velocity || !next_has_velocity)) {
    other = next();
  }
  ending = Ending::kUndone;
}

}  // namespace lightcc::cuda
