// Alltoall, send and recv: independent byte streams through the scatter windows of pairs of
// members.
//
// The two ends of a stream cut it alike, because both know its length. Every stream moves on its
// own: a slow peer holds up nobody else.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/collectives/shm/shm_windows.hpp"
#include "lightcc/collectives/shm/shm_work.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

namespace {

class PairWork final : public ShmWork {
 public:
  PairWork(std::shared_ptr<ShmState> state, const std::vector<ShmFlow>& flows)
      : ShmWork(std::move(state)) {
    for (const ShmFlow& flow : flows) {
      streams_.push_back({.flow = flow,
                          .send_piece = piece_bytes(flow.in.size()),
                          .take_piece = piece_bytes(flow.out.size())});
    }
  }

 private:
  struct Stream {
    ShmFlow flow;  // What is left of it.
    std::size_t send_piece;
    std::size_t take_piece;
  };

  Progress step() override;
  bool move(Stream& stream);
  bool move_within(Stream& stream);
  /// A slot, or less, so that a middling message still has pieces to overlap.
  std::size_t piece_bytes(std::size_t total) {
    constexpr std::size_t kPieces = 4;
    constexpr std::size_t kMinBytes = std::size_t{16} << 10;
    return std::min(std::max(total / kPieces / 64 * 64, kMinBytes), windows().layout().slot_bytes);
  }

  std::vector<Stream> streams_;
};

// hot
Progress PairWork::step() {
  bool moved = false;
  for (int budget = kStepBudget; budget > 0 && !streams_.empty(); --budget) {
    bool some = false;
    for (Stream& stream : streams_) {
      some |= stream.flow.peer == windows().rank() ? move_within(stream) : move(stream);
    }
    if (!some) {
      break;
    }
    moved = true;
    std::erase_if(streams_, [](const Stream& stream) {
      return stream.flow.in.empty() && stream.flow.out.empty();
    });
  }
  if (streams_.empty()) {
    return Progress::kDone;
  }
  return moved ? Progress::kMoved : Progress::kIdle;
}

/// Whether anything moved, or there was nothing left to move.
bool PairWork::move(Stream& stream) {
  ShmFlow& flow = stream.flow;
  bool moved = flow.in.empty() && flow.out.empty();
  if (!flow.in.empty() && windows().can_send(flow.peer)) {
    const std::size_t bytes = std::min(stream.send_piece, flow.in.size());
    copy_bytes(windows().send_slot(flow.peer), flow.in.data(), bytes);
    flow.in = flow.in.subspan(bytes);
    windows().mark_sent(flow.peer);
    windows().ring(flow.peer);
    moved = true;
  }
  if (!flow.out.empty() && windows().can_take(flow.peer)) {
    const std::size_t bytes = std::min(stream.take_piece, flow.out.size());
    copy_bytes(flow.out.data(), windows().take_slot(flow.peer), bytes);
    flow.out = flow.out.subspan(bytes);
    windows().mark_taken(flow.peer);
    windows().ring(flow.peer);
    moved = true;
  }
  return moved;
}

bool PairWork::move_within(Stream& stream) {
  ShmFlow& flow = stream.flow;
  const std::size_t bytes =
      std::min({windows().layout().slot_bytes, flow.in.size(), flow.out.size()});
  copy_bytes(flow.out.data(), flow.in.data(), bytes);
  flow.in = flow.in.subspan(bytes);
  flow.out = flow.out.subspan(bytes);
  return true;
}

}  // namespace

std::unique_ptr<Work> make_shm_pairs(std::shared_ptr<ShmState> state,
                                     const std::vector<ShmFlow>& flows) {
  return std::make_unique<PairWork>(std::move(state), flows);
}

}  // namespace lightcc
