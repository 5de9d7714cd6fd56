#include "receiver.hpp"

#include "protocol/ack_body.hpp"
#include "protocol/events.hpp"

namespace harp_cycles {

Receiver::Receiver(const Shape& shape, const harp::Key& key)
    : shape_(shape), buffers_(shape), sessions_((kCid & 0xfff) + 1) {
  sessions_.back() = key;
  receiver_.start(kFirstMessage, shape.pss);
  post();
}

void Receiver::post() {
  while (receiver_.posted() < shape_.outstanding) {
    (void)receiver_.post({.buffer = buffers_.prepare(posted_), .cookie = posted_}, events_);
    ++posted_;
  }
}

void Receiver::settle(bool was_copied, harp::Time now) {
  harp::Event event;
  while (events_.pop(event)) {
    require(event.kind == harp::Event::Kind::kReceiveDone && event.cookie == completed_ &&
                event.bytes == shape_.message_bytes() && event.tag == 7,
            "a message out of order");
    if (was_copied) {
      buffers_.check(completed_);
    }
    ++completed_;
    ++checked_;
  }
  harp::AckBody ack;
  window_.fill(ack);
  tracker_.fill(ack, now);
  require(ack.sack_words == 0, "a packet that is missing");
  post();
}

}  // namespace harp_cycles
