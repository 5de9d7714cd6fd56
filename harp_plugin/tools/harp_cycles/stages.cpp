#include "stages.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bench.hpp"
#include "frames.hpp"
#include "receiver.hpp"
#include "sender.hpp"
#include "shape.hpp"

namespace harp_cycles {
namespace {

constexpr std::uint64_t kCheckEvery = 16;  ///< Bursts, since to look at packets takes long.

template <unsigned Parts>
class TransmitBench final : public Bench {
 public:
  explicit TransmitBench(const Shape& shape)
      : burst_packets_(shape.burst_packets), frames_(shape, shape.batch_packets), sender_(shape) {}

  void step(Tally& tally) override {
    for (std::size_t first = 0; first < frames_.count(); first += burst_packets_) {
      tally.time(0, [&] { sender_.burst<Parts>(frames_, first); });
      tally.packets += burst_packets_;
      if (bursts_++ % kCheckEvery == 0) {
        sender_.check<Parts>(frames_, first);
      }
      if constexpr ((Parts & send_part::kCopy) == 0) {
        sender_.copy_burst(frames_, first);
      }
      sender_.acknowledge_all();
    }
    for (std::size_t i = 0; i < frames_.count(); ++i) {
      sender_.absorb(frames_.packet(i));
    }
  }
  std::uint64_t checked() const override { return sender_.checked(); }

 private:
  std::size_t burst_packets_;
  Frames frames_;
  Sender sender_;
  std::uint64_t bursts_ = 0;
};

template <unsigned Parts, bool HasCrc>
class ReceiveBench final : public Bench {
 public:
  explicit ReceiveBench(const Shape& shape)
      : burst_packets_(shape.burst_packets),
        frames_(shape, shape.batch_packets),
        sender_(shape),
        receiver_(shape, sender_.key()) {}

  void step(Tally& tally) override {
    constexpr unsigned kSent = HasCrc ? send_part::kAll : send_part::kAll & ~send_part::kCrc;
    for (std::size_t first = 0; first < frames_.count(); first += burst_packets_) {
      sender_.burst<kSent>(frames_, first);
      sender_.acknowledge_all();
    }
    for (std::size_t first = 0; first < frames_.count(); first += kMaxTakenPackets) {
      const std::size_t count = std::min(kMaxTakenPackets, frames_.count() - first);
      const harp::Time now = sender_.now();
      tally.time(0, [&] { receiver_.burst<Parts>(frames_, first, count, now); });
      tally.packets += count;
      packets_ += count;
      receiver_.settle((Parts & receive_part::kCopy) != 0, now);
      if constexpr ((Parts & receive_part::kCopy) == 0) {
        for (std::size_t i = first; i < first + count; ++i) {
          receiver_.absorb(frames_.packet(i));
        }
      }
    }
  }
  std::uint64_t checked() const override {
    return (Parts & receive_part::kPlacement) != 0 ? receiver_.checked() : packets_;
  }

 private:
  std::size_t burst_packets_;
  Frames frames_;
  Sender sender_;
  Receiver receiver_;
  std::uint64_t packets_ = 0;  ///< Each of them authentic, or there would have been an error.
};

}  // namespace

std::vector<std::unique_ptr<Bench>> transmit_benches(const Shape& shape) {
  using namespace send_part;
  std::vector<std::unique_ptr<Bench>> all;
  all.push_back(std::make_unique<TransmitBench<0>>(shape));
  all.push_back(std::make_unique<TransmitBench<kPath>>(shape));
  all.push_back(std::make_unique<TransmitBench<kPath | kPacing>>(shape));
  all.push_back(std::make_unique<TransmitBench<kPath | kPacing | kSeal>>(shape));
  all.push_back(std::make_unique<TransmitBench<kPath | kPacing | kSeal | kCrc>>(shape));
  all.push_back(std::make_unique<TransmitBench<kAll & ~kHeaders>>(shape));
  all.push_back(std::make_unique<TransmitBench<kAll>>(shape));
  return all;
}

std::vector<std::unique_ptr<Bench>> receive_benches(const Shape& shape) {
  using namespace receive_part;
  std::vector<std::unique_ptr<Bench>> all;
  all.push_back(std::make_unique<ReceiveBench<0, false>>(shape));
  all.push_back(std::make_unique<ReceiveBench<kPlacement, false>>(shape));
  all.push_back(std::make_unique<ReceiveBench<kPlacement, true>>(shape));
  all.push_back(std::make_unique<ReceiveBench<kPlacement | kCopy, true>>(shape));
  all.push_back(std::make_unique<ReceiveBench<kPlacement | kCopy | kFrame, true>>(shape));
  return all;
}

}  // namespace harp_cycles
