#include "pair.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "datapath/memory.hpp"
#include "stages.hpp"

namespace harp_cycles {
namespace {

harp::StackConfig stack_config() {
  harp::StackConfig config;
  config.session.queue_allowance = kPatience;
  config.session.min_rto = kPatience;
  return config;
}

}  // namespace

Pair::Pair(const Shape& shape)
    : shape_(shape),
      buffers_(shape),
      network_(shape.mtu_bytes, shape.ring_packets()),
      sender_(std::make_unique<harp::MemoryDatapath>(network_, 0), stack_config()),
      receiver_(std::make_unique<harp::MemoryDatapath>(network_, 1), stack_config()),
      sends_(shape.outstanding),
      receives_(shape.outstanding) {
  connect();
  post();
}

void Pair::connect() {
  const auto backlog = std::make_shared<harp::Backlog>();
  from_ = sender_.connect(receiver_.listen(backlog), later());
  for (int turn = 0; turn < 8 && to_ == nullptr; ++turn) {
    (void)sender_.turn(later());
    (void)receiver_.turn(later());
    to_ = backlog->take();
  }
  require(to_ != nullptr && from_->life() == harp::Channel::Life::kOpen,
          "stacks that do not connect");
}

void Pair::post() {
  for (; posted_ < completed_ + shape_.outstanding; ++posted_) {
    const auto receive = to_->receive(buffers_.prepare(posted_));
    const auto send = from_->send(buffers_.source(posted_), 7);
    require(receive && send, "a channel that takes no more");
    receives_[posted_ % shape_.outstanding] = *receive;
    sends_[posted_ % shape_.outstanding] = *send;
  }
}

void Pair::step(Tally& tally) {
  const std::uint64_t before = sender_.datapath().stats().packets_sent;
  std::uint64_t sent = before;
  // Bursts are not all alike: a batch ends where another one would be more of it than not.
  while (sent + shape_.burst_packets / 2 < before + shape_.batch_packets) {
    tally.time(0, [&] { (void)sender_.turn(later()); });
    const std::uint64_t now_sent = sender_.datapath().stats().packets_sent;
    if (now_sent == sent) {
      break;  // The window is still small.
    }
    sent = now_sent;
    if (completed_ < received_) {
      settle();  // Acknowledgements of the batch before have come.
    }
  }
  require(sent > before, "a sender that does not transmit");
  // An answer waits a turn when a message is complete: its application comes first.
  constexpr harp::Time kAtOnce{};
  while (receiver_.datapath().stats().packets_received < sent ||
         receiver_.next_deadline() == kAtOnce) {
    tally.time(1, [&] { (void)receiver_.turn(later()); });
  }
  tally.packets += sent - before;
  settle();
}

/// What applications do: they look what became of their requests, and post others.
void Pair::settle() {
  for (; received_ < posted_; ++received_) {
    const auto done = to_->test(receives_[received_ % shape_.outstanding]);
    if (!done) {
      break;
    }
    require(done->error == harp::SessionError::kNone && done->tag == 7 &&
                done->bytes == shape_.message_bytes(),
            "a message that failed");
    buffers_.check(received_);
  }
  for (; completed_ < received_; ++completed_) {
    const auto done = from_->test(sends_[completed_ % shape_.outstanding]);
    if (!done) {
      break;
    }
    require(done->error == harp::SessionError::kNone, "a message that failed");
  }
  post();
  const harp::SessionStats ours = sender_.session_stats();
  require(ours.data_bytes_retransmitted == 0 && sender_.datapath().stats().send_errors == 0 &&
              receiver_.session_stats().duplicates == 0 && receiver_.stats().strangers == 0,
          "packets that were lost");
}

std::unique_ptr<Bench> turn_bench(const Shape& shape) {
  return std::make_unique<Pair>(shape);
}

}  // namespace harp_cycles
