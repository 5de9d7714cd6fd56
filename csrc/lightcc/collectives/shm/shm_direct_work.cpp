// Allreduce by direct exchange, and the barrier: everyone publishes all it has, and each member
// combines all contributions for itself, in member order, so the bits are those of the other way.
//
// This trades arithmetic for latency: one flag each way instead of two. Every member reads n-1
// inputs where shares (shm_reduce_work.cpp) take 2 (n-1)/n. Between two members that is the same,
// so there it is the better way until the tensors outgrow the caches; between many it is for small
// messages.
//
// In place is safe: a piece has been published before its results are written over it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/kernels/reduce_job.hpp"
#include "lightcc/collectives/shm/shm_windows.hpp"
#include "lightcc/collectives/shm/shm_work.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

namespace {

class DirectWork final : public ShmWork {
 public:
  /// `piece`: elements of a round, at most a slot.
  DirectWork(std::shared_ptr<ShmState> state,
             BucketView bucket,
             std::size_t piece,
             const Reduction& reduction)
      : ShmWork(std::move(state)),
        bucket_(std::move(bucket)),
        piece_(piece),
        rounds_((bucket_.total_elements() + piece - 1) / piece),
        reduction_(reduction),
        sources_(windows().size()) {}

 private:
  void begin() override { base_ = windows().round(); }
  Progress step() override;
  bool publish();
  bool combine();
  ElementRange range(std::size_t round) const {
    const std::size_t first = round * piece_;
    return {.first = first, .count = std::min(piece_, bucket_.total_elements() - first)};
  }

  BucketView bucket_;
  std::size_t piece_;
  std::size_t rounds_;
  Reduction reduction_;
  std::vector<ReduceSource> sources_;
  std::uint64_t base_ = 0;  // Number of the first round.
  std::size_t publish_round_ = 0;
  std::size_t combine_round_ = 0;
  std::size_t combine_step_ = 1;
};

// hot
Progress DirectWork::step() {
  bool moved = false;
  for (int budget = kStepBudget; budget > 0; --budget) {
    const bool some =
        (combine_round_ < publish_round_ && combine()) || (publish_round_ < rounds_ && publish());
    if (combine_round_ == rounds_) {
      windows().finish_rounds(rounds_);
      return Progress::kDone;
    }
    if (!some) {
      break;
    }
    moved = true;
  }
  return moved ? Progress::kMoved : Progress::kIdle;
}

bool DirectWork::publish() {
  const std::uint64_t round = base_ + publish_round_;
  if (!windows().can_publish(round)) {
    return false;
  }
  bucket_.pack(range(publish_round_), windows().result_slot(round));
  windows().mark_published(round);
  windows().ring_all();
  ++publish_round_;
  return true;
}

bool DirectWork::combine() {
  const std::uint64_t round = base_ + combine_round_;
  for (; combine_step_ < windows().size(); ++combine_step_) {
    if (!windows().is_published(windows().peer(combine_step_), round)) {
      return false;
    }
  }
  const std::size_t width = bucket_.element_bytes();
  bucket_.for_each_piece(range(combine_round_), [&](const TensorSpan& piece, std::size_t first) {
    if (piece.out == nullptr) {
      return;
    }
    for (std::size_t k = 0; k < sources_.size(); ++k) {
      sources_[k].data =
          k == windows().rank() ? piece.in : windows().result_slot_of(k, round) + first * width;
    }
    reduce(sources_, piece.out, nullptr, piece.count, reduction_, simd());
  });
  windows().mark_consumed(round);
  windows().ring_all();
  ++combine_round_;
  combine_step_ = 1;
  return true;
}

class BarrierWork final : public ShmWork {
 public:
  using ShmWork::ShmWork;

 private:
  Progress step() override {
    const std::uint64_t round = windows().round();
    const bool publishes = !published_;
    if (publishes) {
      // No slot is written, so none has to be free.
      windows().mark_published(round);
      windows().ring_all();
      published_ = true;
    }
    for (; step_ < windows().size(); ++step_) {
      if (!windows().is_published(windows().peer(step_), round)) {
        return publishes ? Progress::kMoved : Progress::kIdle;
      }
    }
    windows().finish_rounds(1);
    return Progress::kDone;
  }

  bool published_ = false;
  std::size_t step_ = 1;
};

}  // namespace

std::unique_ptr<Work> make_shm_direct_allreduce(std::shared_ptr<ShmState> state,
                                                const std::vector<TensorSpan>& tensors,
                                                const Reduction& reduction) {
  constexpr std::size_t kRounds = 4;  // A middling message still has rounds to overlap.
  constexpr std::size_t kMinBytes = std::size_t{64} << 10;
  const std::size_t width = element_size(reduction.dtype);
  BucketView bucket(tensors, width);
  const std::size_t wanted =
      std::max(bucket.total_elements() * width / kRounds / 64 * 64, kMinBytes);
  const std::size_t piece = std::min(wanted, state->windows.layout().slot_bytes) / width;
  return std::make_unique<DirectWork>(std::move(state), std::move(bucket), piece, reduction);
}

std::unique_ptr<Work> make_shm_barrier(std::shared_ptr<ShmState> state) {
  return std::make_unique<BarrierWork>(std::move(state));
}

}  // namespace lightcc
