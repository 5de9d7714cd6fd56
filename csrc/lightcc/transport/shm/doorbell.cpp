#include "lightcc/transport/shm/doorbell.hpp"

#include <sys/eventfd.h>

#include "lightcc/transport/shm/host_mail.hpp"

namespace lightcc {

void Doorbell::wake() const {
  if (word_->sleeping.exchange(kAwake, std::memory_order_seq_cst) != kAwake) {
    if (name_ != nullptr) {
      send_wake_up(fd_, *name_);
    } else {
      (void)::eventfd_write(fd_, 1);  // The counter cannot overflow: one write per sleep.
    }
  }
}

}  // namespace lightcc
