#include "lightcc/engine/loop_bell.hpp"

namespace lightcc {

void LoopBell::ring() {
  const MutexLock lock(mutex_);
  if (waker_ != nullptr) {
    waker_->wake();
  }
}

}  // namespace lightcc
