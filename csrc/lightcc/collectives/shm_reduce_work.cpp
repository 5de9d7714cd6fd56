// Allreduce and reduce_scatter, by shares. (Essay: shm_group.cpp.)
//
// The elements are cut into rounds and each round into shares, one for each member. Three stages,
// each with its own round number, so that each is resumable and none waits for another one's peer:
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
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/kernels/reduce_job.hpp"
#include "lightcc/collectives/shm_layout.hpp"
#include "lightcc/collectives/shm_spans.hpp"
#include "lightcc/collectives/shm_windows.hpp"
#include "lightcc/collectives/shm_work.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

namespace {

constexpr std::size_t kCacheLine = 64;

/// Elements [offset, offset + count) of the bucket.
struct Slice {
  std::size_t offset = 0;
  std::size_t count = 0;
};

constexpr std::size_t divide_up(std::size_t value, std::size_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

/// Which elements member `k` owns in a round. The same on all members.
class Shares {
 public:
  /// Every round is divided among all; the last one, which may be short, evenly too.
  static Shares even(std::size_t count, std::size_t members, std::size_t slot, std::size_t align) {
    Shares shares;
    shares.count_ = count;
    shares.members_ = members;
    shares.slot_ = slot;
    const std::size_t per_round = slot * members;
    shares.rounds_ = divide_up(count, per_round);
    if (shares.rounds_ != 0) {
      const std::size_t last = count - (shares.rounds_ - 1) * per_round;
      shares.last_slot_ = divide_up(divide_up(last, members), align) * align;
    }
    return shares;
  }
  /// Member k owns counts[k] elements, a slot of them in each round.
  static Shares blocks(const std::vector<std::size_t>& counts, std::size_t slot) {
    Shares shares;
    shares.slot_ = slot;
    std::size_t start = 0;
    for (const std::size_t count : counts) {
      shares.blocks_.push_back({.offset = start, .count = count});
      start += count;
      shares.rounds_ = std::max(shares.rounds_, divide_up(count, slot));
    }
    return shares;
  }

  std::size_t rounds() const { return rounds_; }
  Slice of(std::size_t round, std::size_t member) const {
    if (!blocks_.empty()) {
      const Slice& block = blocks_[member];
      const std::size_t skip = std::min(round * slot_, block.count);
      return {.offset = block.offset + skip, .count = std::min(slot_, block.count - skip)};
    }
    const std::size_t slot = round + 1 == rounds_ ? last_slot_ : slot_;
    const std::size_t offset = std::min(round * members_ * slot_ + member * slot, count_);
    return {.offset = offset, .count = std::min(slot, count_ - offset)};
  }

 private:
  std::size_t count_ = 0;
  std::size_t members_ = 1;
  std::size_t slot_ = 0;
  std::size_t last_slot_ = 0;
  std::size_t rounds_ = 0;
  std::vector<Slice> blocks_;
};

class ReduceWork final : public ShmWork {
 public:
  ReduceWork(std::shared_ptr<ShmState> state,
             ShmSpans spans,
             Shares shares,
             bool allreduce,
             const Reduction& reduction)
      : ShmWork(std::move(state)),
        spans_(std::move(spans)),
        shares_(std::move(shares)),
        reduction_(reduction),
        element_bytes_(element_size(reduction.dtype)),
        gathers_(allreduce && windows().size() > 1),
        past_cache_(spans_.count() * element_bytes_ >= kPastCacheBytes),
        sources_(windows().size()) {}

 private:
  void begin() override { base_ = windows().round(); }
  Progress step() override;
  bool scatter();
  bool reduce_own();
  void reduce_share(const Slice& slice);
  bool gather();

  ShmSpans spans_;
  Shares shares_;
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
  const std::size_t rounds = shares_.rounds();
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
    const Slice slice = shares_.of(scatter_round_, peer);
    if (slice.count == 0) {
      continue;
    }
    if (!windows().can_send(peer)) {
      return moved;
    }
    std::byte* const slot = windows().send_slot(peer);
    spans_.visit(slice.offset,
                 slice.count,
                 [&](const std::byte* in, std::byte*, std::size_t first, std::size_t count) {
                   copy_or_zero(slot + first * element_bytes_, in, count * element_bytes_);
                 });
    windows().mark_sent(peer);
    windows().ring(peer);
    moved = true;
  }
  ++scatter_round_;
  scatter_step_ = 1;
  return true;
}

bool ReduceWork::reduce_own() {
  const Slice slice = shares_.of(reduce_round_, windows().rank());
  if (slice.count != 0) {
    for (; reduce_step_ < windows().size(); ++reduce_step_) {
      if (!windows().can_take(windows().peer(reduce_step_))) {
        return false;
      }
    }
    if (gathers_ && !windows().can_publish(base_ + reduce_round_)) {
      return false;
    }
    reduce_share(slice);
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

void ReduceWork::reduce_share(const Slice& slice) {
  const std::size_t rank = windows().rank();
  const bool alone =
      sources_.size() == 1 && reduction_.prescale == 1.0 && reduction_.postscale == 1.0;
  std::byte* const result = gathers_ ? windows().result_slot(base_ + reduce_round_) : nullptr;
  spans_.visit(slice.offset,
               slice.count,
               [&](const std::byte* in, std::byte* out, std::size_t first, std::size_t count) {
                 const std::size_t skip = first * element_bytes_;
                 std::byte* const publish = result == nullptr ? nullptr : result + skip;
                 if ((out == nullptr && publish == nullptr) ||
                     (alone && in == out && reduction_.dtype != DataType::kBool)) {
                   return;
                 }
                 for (std::size_t k = 0; k < sources_.size(); ++k) {
                   sources_[k].data = k == rank ? in : windows().take_slot(k) + skip;
                 }
                 reduce(
                     sources_, out != nullptr ? out : publish, nullptr, count, reduction_, simd());
                 // Not as a second output of reduce(): a copy takes over the lines, which the
                 // others have in their caches, without fetching them, which is faster by far.
                 if (out != nullptr && publish != nullptr) {
                   copy_bytes(publish, out, count * element_bytes_);
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
    const Slice slice = shares_.of(gather_round_, peer);
    if (slice.count == 0) {
      continue;
    }
    if (!windows().is_published(peer, round)) {
      return moved;
    }
    const std::byte* const slot = windows().result_slot_of(peer, round);
    spans_.visit(slice.offset,
                 slice.count,
                 [&](const std::byte* in, std::byte* out, std::size_t first, std::size_t count) {
                   const std::byte* const from = slot + first * element_bytes_;
                   if (out == in || !past_cache_) {  // In place, scatter has just read these lines.
                     copy_bytes(out, from, out != nullptr ? count * element_bytes_ : 0);
                   } else if (out != nullptr) {
                     copy_past_cache(out, from, count * element_bytes_);
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

/// Elements of a share: a slot, or less, so that a middling message still has rounds to overlap.
std::size_t share_elements(const ShmLayout& layout, std::size_t max_elements, std::size_t width) {
  constexpr std::size_t kRounds = 2;
  constexpr std::size_t kMinBytes = std::size_t{16} << 10;
  const std::size_t bytes =
      std::max(divide_up(max_elements, kRounds) * width / kCacheLine * kCacheLine, kMinBytes);
  return std::min(bytes, layout.slot_bytes) / width;
}

}  // namespace

std::unique_ptr<Work> make_shm_allreduce(std::shared_ptr<ShmState> state,
                                         std::vector<TensorSpan> spans,
                                         const Reduction& reduction) {
  const ShmLayout& layout = state->windows.layout();
  const std::size_t width = element_size(reduction.dtype);
  ShmSpans row(std::move(spans), width);
  const std::size_t count = row.count();
  Shares shares = Shares::even(count,
                               layout.size,
                               share_elements(layout, divide_up(count, layout.size), width),
                               kCacheLine / width);
  return std::make_unique<ReduceWork>(
      std::move(state), std::move(row), std::move(shares), true, reduction);
}

std::unique_ptr<Work> make_shm_reduce_scatter(std::shared_ptr<ShmState> state,
                                              std::vector<TensorSpan> spans,
                                              const std::vector<std::size_t>& counts,
                                              const Reduction& reduction) {
  const ShmLayout& layout = state->windows.layout();
  const std::size_t width = element_size(reduction.dtype);
  const std::size_t maximum = *std::ranges::max_element(counts);
  Shares shares = Shares::blocks(counts, share_elements(layout, maximum, width));
  return std::make_unique<ReduceWork>(
      std::move(state), ShmSpans(std::move(spans), width), std::move(shares), false, reduction);
}

}  // namespace lightcc
