#include "protocol/receive_window.hpp"

#include <cstdint>

#include "base/serial.hpp"
#include "protocol/ack_body.hpp"
#include "protocol/types.hpp"

namespace harp {

ReceiveWindow::Verdict ReceiveWindow::examine(Psn psn) const {  // hot
  const std::int32_t distance = serial_distance(cum_, psn);
  if (distance < 0) {
    return Verdict::kDuplicate;
  }
  if (distance >= static_cast<std::int32_t>(arrived_.window_packets())) {
    return Verdict::kOutside;
  }
  return arrived_.test(psn) ? Verdict::kDuplicate : Verdict::kNew;
}

void ReceiveWindow::accept(Psn psn) {  // hot
  arrived_.set(psn);
  if (!serial_less(psn, end_)) {
    end_ = psn + 1;
  }
  while (cum_ != end_ && arrived_.test(cum_)) {
    arrived_.clear(cum_);
    ++cum_;
  }
}

void ReceiveWindow::fill(AckBody& ack) const {
  ack.cum_psn = cum_;
  const std::uint32_t spread = end_ - cum_;
  ack.sack_words = static_cast<std::uint8_t>((spread + 63) / 64);
  for (std::uint32_t word = 0; word < ack.sack_words; ++word) {
    ack.sack[word] = arrived_.word_at(cum_ + 64 * word);
  }
}

}  // namespace harp
