// Allgather and broadcast: blocks go through the result windows, a piece of each in every round.
//
// Each block's owner may be `depth` rounds ahead of its slowest reader. Members without a block
// (all but the root of a broadcast) only read; a member with nothing left to read does not hold up
// the others, because what it would acknowledge it has never read.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/share_plan.hpp"
#include "lightcc/collectives/shm/shm_windows.hpp"
#include "lightcc/collectives/shm/shm_work.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

namespace {

class GatherWork final : public ShmWork {
 public:
  GatherWork(std::shared_ptr<ShmState> state,
             const std::vector<TensorSpan>& tensors,
             const std::vector<std::size_t>& bytes);

 private:
  void begin() override { base_ = windows().round(); }
  Progress step() override;
  bool publish();
  bool collect();

  BucketView bucket_;  // Its elements are bytes.
  SharePlan blocks_;
  std::size_t own_rounds_ = 0;  // In which this member publishes.
  void (*copy_out_)(std::byte*, const std::byte*, std::size_t);
  std::uint64_t base_ = 0;
  std::size_t publish_round_ = 0;
  std::size_t collect_round_ = 0;
  std::size_t collect_step_ = 1;
};

/// Bytes of a piece: a slot, or less, so that a middling block still has pieces to overlap.
std::size_t gathered_piece(const ShmLayout& layout, const std::vector<std::size_t>& bytes) {
  constexpr std::size_t kRounds = 4;
  constexpr std::size_t kMinBytes = std::size_t{16} << 10;
  const std::size_t maximum = *std::ranges::max_element(bytes);
  return std::min(std::max(maximum / kRounds / 64 * 64, kMinBytes), layout.slot_bytes);
}

GatherWork::GatherWork(std::shared_ptr<ShmState> state,
                       const std::vector<TensorSpan>& tensors,
                       const std::vector<std::size_t>& bytes)
    : ShmWork(std::move(state)),
      bucket_(tensors, 1),
      blocks_(SharePlan::by_counts(bytes, 1, gathered_piece(windows().layout(), bytes))),
      copy_out_(bucket_.total_elements() >= kPastCacheBytes ? copy_past_cache : copy_bytes) {
  const std::size_t piece = blocks_.piece_bytes();
  own_rounds_ = (bytes[windows().rank()] + piece - 1) / piece;
}

// hot
Progress GatherWork::step() {
  bool moved = false;
  for (int budget = kStepBudget; budget > 0; --budget) {
    const bool published = publish_round_ < own_rounds_ && publish();
    const bool collected = collect_round_ < blocks_.chunks() && collect();
    if (publish_round_ == own_rounds_ && collect_round_ == blocks_.chunks()) {
      windows().finish_rounds(blocks_.chunks());
      return Progress::kDone;
    }
    if (!published && !collected) {
      break;
    }
    moved = true;
  }
  return moved ? Progress::kMoved : Progress::kIdle;
}

bool GatherWork::publish() {
  const std::uint64_t round = base_ + publish_round_;
  if (windows().size() > 1 && !windows().can_publish(round)) {
    return false;
  }
  std::byte* const slot = windows().size() > 1 ? windows().result_slot(round) : nullptr;
  bucket_.for_each_piece(blocks_.piece(publish_round_, windows().rank()),
                         [&](const TensorSpan& piece, std::size_t first) {
                           if (slot != nullptr) {
                             copy_bytes(slot + first, piece.in, piece.count);
                           }
                           if (piece.out != nullptr) {
                             copy_bytes(piece.out, piece.in, piece.count);
                           }
                         });
  if (slot != nullptr) {
    windows().mark_published(round);
    windows().ring_all();
  }
  ++publish_round_;
  return true;
}

bool GatherWork::collect() {
  const std::uint64_t round = base_ + collect_round_;
  bool moved = false;
  bool read = collect_step_ > 1;
  for (; collect_step_ < windows().size(); ++collect_step_) {
    const std::size_t peer = windows().peer(collect_step_);
    const ElementRange range = blocks_.piece(collect_round_, peer);
    if (range.count == 0) {
      continue;
    }
    if (!windows().is_published(peer, round)) {
      return moved;
    }
    const std::byte* const slot = windows().result_slot_of(peer, round);
    bucket_.for_each_piece(range, [&](const TensorSpan& piece, std::size_t first) {
      if (piece.out != nullptr) {
        copy_out_(piece.out, slot + first, piece.count);
      }
    });
    moved = true;
    read = true;
  }
  if (read) {
    windows().mark_consumed(round);
    windows().ring_all();
  }
  ++collect_round_;
  collect_step_ = 1;
  return true;
}

}  // namespace

std::unique_ptr<Work> make_shm_gather(std::shared_ptr<ShmState> state,
                                      const std::vector<TensorSpan>& tensors,
                                      const std::vector<std::size_t>& bytes) {
  return std::make_unique<GatherWork>(std::move(state), tensors, bytes);
}

}  // namespace lightcc
