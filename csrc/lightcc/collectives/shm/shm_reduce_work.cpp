// Allreduce and reduce_scatter, by shares. (Essay: shm_group.cpp.)
//
// The elements are cut into rounds, which are the chunks of a SharePlan, and each round into
// shares, one for each member. Three stages, each with its own round number, so that each is
// resumable and none waits for another one's peer:
//   scatter  copies the others' shares of my input into my scatter windows,
//   reduce   combines my share, in member order, from my tensors and the others' windows, into my
//            tensors and (allreduce) my result window,
//   gather   (allreduce) copies the others' results into my tensors.
// The oldest round that can move moves first: what a round has read is then still in the cache when
// its results are written over it.
//
// In place is safe: scatter has read a share before gather overwrites it, since a result exists
// only after its owner has taken all scatter slots of that share.

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
#include "lightcc/collectives/share_plan.hpp"
#include "lightcc/collectives/shm/shm_layout.hpp"
#include "lightcc/collectives/shm/shm_windows.hpp"
#include "lightcc/collectives/shm/shm_work.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

namespace {

constexpr std::size_t kCacheLine = 64;

constexpr std::size_t divide_up(std::size_t value, std::size_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

class ReduceWork final : public ShmWork {
 public:
  ReduceWork(std::shared_ptr<ShmState> state,
             BucketView bucket,
             SharePlan shares,
             bool allreduce,
             const Reduction& reduction)
      : ShmWork(std::move(state)),
        bucket_(std::move(bucket)),
        shares_(std::move(shares)),
        reduction_(reduction),
        element_bytes_(element_size(reduction.dtype)),
        gathers_(allreduce && windows().size() > 1),
        past_cache_(bucket_.total_elements() * element_bytes_ >= kPastCacheBytes),
        sources_(windows().size()) {}

 private:
  void begin() override { base_ = windows().round(); }
  Progress step() override;
  bool scatter();
  bool reduce_own();
  void reduce_share(ElementRange share);
  bool gather();

  BucketView bucket_;
  SharePlan shares_;
  Reduction reduction_;
  std::size_t element_bytes_;
  bool gathers_;
  bool past_cache_;
  std::vector<ReduceSource> sources_;
  std::uint64_t base_ = 0;  // Number of the first round.
  // For each stage, the round it is at, and the peer (as a step from this member) within the round.
  std::size_t scatter_round_ = 0;
  std::size_t scatter_step_ = 1;
  std::size_t reduce_round_ = 0;
  std::size_t reduce_step_ = 1;
  std::size_t gather_round_ = 0;
  std::size_t gather_step_ = 1;
};

// hot
Progress ReduceWork::step() {
  const std::size_t rounds = shares_.chunks();
  bool moved = false;
  for (int budget = kStepBudget; budget > 0; --budget) {
    const bool some = (gather_round_ < reduce_round_ && gather()) ||
                      (reduce_round_ < scatter_round_ && reduce_own()) ||
                      (scatter_round_ < rounds && scatter());
    if (gather_round_ == rounds) {
      if (gathers_) {
        windows().finish_rounds(rounds);
      }
      return Progress::kDone;
    }
    if (!some) {
      break;
    }
    moved = true;
  }
  return moved ? Progress::kMoved : Progress::kIdle;
}

// Each stage does as much of its round as it can, and says whether that was anything.

bool ReduceWork::scatter() {
  bool moved = false;
  for (; scatter_step_ < windows().size(); ++scatter_step_) {
    const std::size_t peer = windows().peer(scatter_step_);
    const ElementRange share = shares_.piece(scatter_round_, peer);
    if (share.count == 0) {
      continue;
    }
    if (!windows().can_send(peer)) {
      return moved;
    }
    std::byte* const slot = windows().send_slot(peer);
    bucket_.pack(share, slot);
    windows().mark_sent(peer);
    windows().ring(peer);
    moved = true;
  }
  ++scatter_round_;
  scatter_step_ = 1;
  return true;
}

bool ReduceWork::reduce_own() {
  const ElementRange share = shares_.piece(reduce_round_, windows().rank());
  if (share.count != 0) {
    for (; reduce_step_ < windows().size(); ++reduce_step_) {
      if (!windows().can_take(windows().peer(reduce_step_))) {
        return false;
      }
    }
    if (gathers_ && !windows().can_publish(base_ + reduce_round_)) {
      return false;
    }
    reduce_share(share);
    for (std::size_t step = 1; step < windows().size(); ++step) {
      windows().mark_taken(windows().peer(step));
    }
    if (gathers_) {
      windows().mark_published(base_ + reduce_round_);
    }
    windows().ring_all();
  }
  ++reduce_round_;
  reduce_step_ = 1;
  return true;
}

void ReduceWork::reduce_share(ElementRange share) {
  const std::size_t rank = windows().rank();
  const bool alone =
      sources_.size() == 1 && reduction_.prescale == 1.0 && reduction_.postscale == 1.0;
  std::byte* const result = gathers_ ? windows().result_slot(base_ + reduce_round_) : nullptr;
  bucket_.for_each_piece(share, [&](const TensorSpan& piece, std::size_t first) {
    const std::size_t skip = first * element_bytes_;
    std::byte* const publish = result == nullptr ? nullptr : result + skip;
    if ((piece.out == nullptr && publish == nullptr) ||
        (alone && piece.in == piece.out && reduction_.dtype != DataType::kBool)) {
      return;
    }
    for (std::size_t k = 0; k < sources_.size(); ++k) {
      sources_[k].data = k == rank ? piece.in : windows().take_slot(k) + skip;
    }
    std::byte* const out = piece.out != nullptr ? piece.out : publish;
    reduce(sources_, out, nullptr, piece.count, reduction_, simd());
    // Not as a second output of reduce(): a copy takes over the lines, which the others have in
    // their caches, without fetching them, which is faster by far.
    if (out != publish && publish != nullptr) {
      copy_bytes(publish, out, piece.count * element_bytes_);
    }
  });
}

bool ReduceWork::gather() {
  if (!gathers_) {
    gather_round_ = reduce_round_;
    return true;
  }
  const std::uint64_t round = base_ + gather_round_;
  bool moved = false;
  for (; gather_step_ < windows().size(); ++gather_step_) {
    const std::size_t peer = windows().peer(gather_step_);
    const ElementRange share = shares_.piece(gather_round_, peer);
    if (share.count == 0) {
      continue;
    }
    if (!windows().is_published(peer, round)) {
      return moved;
    }
    const std::byte* const slot = windows().result_slot_of(peer, round);
    bucket_.for_each_piece(share, [&](const TensorSpan& piece, std::size_t first) {
      const std::byte* const from = slot + first * element_bytes_;
      const std::size_t bytes = piece.count * element_bytes_;
      if (piece.out == nullptr) {
        return;
      }
      if (piece.out == piece.in || !past_cache_) {  // In place, scatter has just read these lines.
        copy_bytes(piece.out, from, bytes);
      } else {
        copy_past_cache(piece.out, from, bytes);
      }
    });
    moved = true;
  }
  windows().mark_consumed(round);
  windows().ring_all();
  ++gather_round_;
  gather_step_ = 1;
  return true;
}

/// Bytes of a share: a slot, or less, so that a middling message still has rounds to overlap.
std::size_t share_bytes(const ShmLayout& layout, std::size_t max_elements, std::size_t width) {
  constexpr std::size_t kRounds = 2;
  constexpr std::size_t kMinBytes = std::size_t{16} << 10;
  const std::size_t bytes = divide_up(max_elements, kRounds) * width / kCacheLine * kCacheLine;
  return std::min(std::max(bytes, kMinBytes), layout.slot_bytes);
}

}  // namespace

std::unique_ptr<Work> make_shm_allreduce(std::shared_ptr<ShmState> state,
                                         const std::vector<TensorSpan>& tensors,
                                         const Reduction& reduction) {
  const ShmLayout& layout = state->windows.layout();
  const std::size_t width = element_size(reduction.dtype);
  BucketView bucket(tensors, width);
  const std::size_t count = bucket.total_elements();
  const std::size_t piece = share_bytes(layout, divide_up(count, layout.size), width);
  SharePlan shares = SharePlan::even(count, width, layout.size, piece);
  return std::make_unique<ReduceWork>(
      std::move(state), std::move(bucket), std::move(shares), true, reduction);
}

std::unique_ptr<Work> make_shm_reduce_scatter(std::shared_ptr<ShmState> state,
                                              const std::vector<TensorSpan>& tensors,
                                              const std::vector<std::size_t>& counts,
                                              const Reduction& reduction) {
  const std::size_t width = element_size(reduction.dtype);
  const std::size_t maximum = *std::ranges::max_element(counts);
  const std::size_t piece = share_bytes(state->windows.layout(), maximum, width);
  SharePlan shares = SharePlan::by_counts(counts, width, piece);
  return std::make_unique<ReduceWork>(
      std::move(state), BucketView(tensors, width), std::move(shares), false, reduction);
}

}  // namespace lightcc
