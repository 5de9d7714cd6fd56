#include "lightcc/transport/shm/doorbell.hpp"

#include <sys/eventfd.h>

namespace lightcc {

void Doorbell::wake() const {
  if (word_->sleeping.exchange(kAwake, std::memory_order_seq_cst) != kAwake) {
    // The counter cannot overflow: one write per sleep. A closed descriptor means that the peer is
    // gone, which liveness reports.
    (void)::eventfd_write(event_fd_, 1);
  }
}

}  // namespace lightcc
