// All-reduce of very small buckets within a row: one hop.
//
// Every member sends its whole input (N bytes) to every other and combines all n inputs itself, as
// an owner of the direct exchange would: the same bits, for less waiting.
//
//   steps   1
//   bytes sent by each member   (n-1) N
//
// The own input is packed before it is sent, even when it is one tensor: so the result can be
// written over it at once, while a transport may still be sending.
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/grid/grid_order.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_works.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

class NetFlood final : public NetWork {
 public:
  NetFlood(std::shared_ptr<NetLinks> links, BucketView bucket, const Reduction& reduction)
      : NetWork(std::move(links)), bucket_(std::move(bucket)), reduction_(reduction) {}

 private:
  Status begin() override {
    const std::size_t bytes = bucket_.total_elements() * bucket_.element_bytes();
    if (bytes == 0) {
      combined_ = true;
      return {};
    }
    const int size = links().size();
    slot_bytes_ = (bytes + 63) / 64 * 64;
    inputs_ = links().scratch(slot_bytes_ * static_cast<std::size_t>(size)).data();
    bucket_.pack({.first = 0, .count = bucket_.total_elements()}, input_of(links().rank()));
    for (int distance = 1; distance < size; ++distance) {
      const int peer = links().neighbour(distance);
      LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(peer));
      LIGHTCC_ASSIGN_OR_RETURN(const RequestId sent,
                               sender->isend({input_of(links().rank()), bytes}));
      sends_.emplace_back(sender).note(sent);
      LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(peer));
      LIGHTCC_ASSIGN_OR_RETURN(const RequestId expected, receiver->irecv({input_of(peer), bytes}));
      recvs_.emplace_back(receiver).note(expected);
    }
    return {};
  }
  Result<Progress> step() override {
    bool moved = false;
    bool arrived = true;
    for (RecvQueue& queue : recvs_) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool settled, queue.settle());
      moved = moved || settled;
      arrived = arrived && queue.idle();
    }
    if (arrived && !combined_) {
      combine();
      combined_ = true;
      moved = true;
    }
    bool left = true;
    for (SendQueue& queue : sends_) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool settled, queue.settle());
      moved = moved || settled;
      left = left && queue.idle();
    }
    if (combined_ && left) {
      return Progress::kDone;
    }
    return moved ? Progress::kMoved : Progress::kIdle;
  }
  void combine() {
    const std::size_t element = bucket_.element_bytes();
    std::array<ReduceSource, kMaxRowWidth> sources{};
    const auto size = static_cast<std::size_t>(links().size());
    const ElementRange all{.first = 0, .count = bucket_.total_elements()};
    bucket_.for_each_piece(all, [&](const TensorSpan& span, std::size_t offset) {
      if (span.out == nullptr) {
        return;
      }
      for (std::size_t member = 0; member < size; ++member) {
        sources[member].data = inputs_ + member * slot_bytes_ + offset * element;
      }
      reduce_in_levels(std::span(sources).first(size),
                       links().order(),
                       span.out,
                       nullptr,
                       span.count,
                       reduction_,
                       links().options().simd);
    });
  }
  std::byte* input_of(int member) const {
    return inputs_ + static_cast<std::size_t>(member) * slot_bytes_;
  }

  BucketView bucket_;
  Reduction reduction_;
  std::vector<SendQueue> sends_;
  std::vector<RecvQueue> recvs_;
  std::byte* inputs_ = nullptr;  ///< That of member m is at m * slot_bytes_.
  std::size_t slot_bytes_ = 0;
  bool combined_ = false;
};

}  // namespace

std::unique_ptr<Work> make_net_flood(std::shared_ptr<NetLinks> links,
                                     BucketView bucket,
                                     const Reduction& reduction) {
  return std::make_unique<NetFlood>(std::move(links), std::move(bucket), reduction);
}

}  // namespace lightcc
