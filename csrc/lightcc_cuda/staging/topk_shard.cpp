// What TopkState's commit() and rollback() do, as far as the host takes part in it.
#include "lightcc_cuda/staging/topk_shard.hpp"

namespace lightcc::cuda {

void TopkShard::begin(bool has_momentum) {
  other.reset();  // Its lanes are written now.
  course = Course::kBegun;
  next_has_velocity = has_momentum;
  is_void = false;
  is_input_whole = true;
}

void TopkShard::commit() {
  if (is_lost || course != Course::kReported || is_non_finite) {
    return rollback();
  }
  const Side before = now;
  now = next();
  if (now.has_velocity || !before.has_velocity) {
    other = before;
  }
  ending = ends_on_gpu ? Ending::kNotified : Ending::kCommitted;
}

void TopkShard::rollback() {
  if (is_lost || course == Course::kBegun) {
    return;  // How the step before has ended still counts.
  }
  if (course == Course::kReported && !is_non_finite) {
    offer_next();
  }
  ending = Ending::kUndone;
  is_cut_off = ends_on_gpu && !is_void;
}

void TopkShard::offer_next() {
  if (now.has_velocity || !next_has_velocity) {
    other = next();
  }
}

}  // namespace lightcc::cuda
