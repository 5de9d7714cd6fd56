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

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/shm_spans.hpp"
#include "lightcc/collectives/shm_windows.hpp"
#include "lightcc/collectives/shm_work.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

namespace {

class GatherWork final : public ShmWork {
 public:
  GatherWork(std::shared_ptr<ShmState> state,
             std::vector<TensorSpan> spans,
             std::vector<std::size_t> bytes);

 private:
  struct Piece {
    std::size_t offset = 0;  // Within the block.
    std::size_t bytes = 0;
  };

  void begin() override { base_ = windows().round(); }
  Progress step() override;
  bool publish();
  bool collect();
  Piece piece_of(std::size_t member, std::size_t round) const {
    const std::size_t offset = std::min(round * piece_bytes_, bytes_[member]);
    return {.offset = offset, .bytes = std::min(piece_bytes_, bytes_[member] - offset)};
  }

  ShmSpans spans_;  // Of bytes.
  std::vector<std::size_t> bytes_;
  std::vector<std::size_t> starts_;  // Of the blocks in spans_.
  std::size_t piece_bytes_ = 0;
  std::size_t rounds_ = 0;
  std::size_t own_rounds_ = 0;  // In which this member publishes.
  void (*copy_out_)(std::byte*, const std::byte*, std::size_t) = copy_bytes;
  std::uint64_t base_ = 0;
  std::size_t publish_round_ = 0;
  std::size_t collect_round_ = 0;
  std::size_t collect_step_ = 1;
};

GatherWork::GatherWork(std::shared_ptr<ShmState> state,
                       std::vector<TensorSpan> spans,
                       std::vector<std::size_t> bytes)
    : ShmWork(std::move(state)), spans_(std::move(spans), 1), bytes_(std::move(bytes)) {
  constexpr std::size_t kRounds = 4;  // A middling block still has pieces to overlap.
  constexpr std::size_t kMinBytes = std::size_t{16} << 10;
  std::size_t start = 0;
  std::size_t maximum = 0;
  for (const std::size_t block : bytes_) {
    starts_.push_back(start);
    start += block;
    maximum = std::max(maximum, block);
  }
  piece_bytes_ =
      std::min(std::max(maximum / kRounds / 64 * 64, kMinBytes), windows().layout().slot_bytes);
  const auto rounds_for = [&](std::size_t block) {
    return block / piece_bytes_ + (block % piece_bytes_ != 0 ? 1 : 0);
  };
  rounds_ = rounds_for(maximum);
  copy_out_ = start >= kPastCacheBytes ? copy_past_cache : copy_bytes;
  own_rounds_ = rounds_for(bytes_[windows().rank()]);
}

// hot
Progress GatherWork::step() {
  bool moved = false;
  for (int budget = kStepBudget; budget > 0; --budget) {
    const bool published = publish_round_ < own_rounds_ && publish();
    const bool collected = collect_round_ < rounds_ && collect();
    if (publish_round_ == own_rounds_ && collect_round_ == rounds_) {
      windows().finish_rounds(rounds_);
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
  const std::size_t rank = windows().rank();
  const Piece piece = piece_of(rank, publish_round_);
  std::byte* const slot = windows().size() > 1 ? windows().result_slot(round) : nullptr;
  spans_.visit(starts_[rank] + piece.offset,
               piece.bytes,
               [&](const std::byte* in, std::byte* out, std::size_t first, std::size_t bytes) {
                 if (slot != nullptr) {
                   copy_bytes(slot + first, in, bytes);
                 }
                 if (out != nullptr) {
                   copy_bytes(out, in, bytes);
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
    const Piece piece = piece_of(peer, collect_round_);
    if (piece.bytes == 0) {
      continue;
    }
    if (!windows().is_published(peer, round)) {
      return moved;
    }
    const std::byte* const slot = windows().result_slot_of(peer, round);
    spans_.visit(starts_[peer] + piece.offset,
                 piece.bytes,
                 [&](const std::byte*, std::byte* out, std::size_t first, std::size_t bytes) {
                   if (out != nullptr) {
                     copy_out_(out, slot + first, bytes);
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
                                      std::vector<TensorSpan> spans,
                                      std::vector<std::size_t> bytes) {
  return std::make_unique<GatherWork>(std::move(state), std::move(spans), std::move(bytes));
}

}  // namespace lightcc
