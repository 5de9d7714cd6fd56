#include "lightcc/collectives/shm/shm_windows.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/collectives/shm/shm_layout.hpp"
#include "lightcc/transport/shm/doorbell.hpp"

namespace lightcc {

ShmWindows::ShmWindows(std::span<std::byte> memory,
                       std::size_t rank,
                       const ShmLayout& layout,
                       std::vector<Doorbell> doorbells)
    : memory_(memory.data()),
      rank_(rank),
      layout_(layout),
      doorbells_(std::move(doorbells)),
      mine_(reinterpret_cast<ShmMemberLine*>(memory_ + layout_.member_line(rank_))),
      pairs_(layout_.size),
      members_(layout_.size) {
  doorbells_.resize(layout_.size);
  for (std::size_t other = 0; other < layout_.size; ++other) {
    Pair& pair = pairs_[other];
    pair.mine = reinterpret_cast<ShmPairLine*>(memory_ + layout_.pair_line(rank_, other));
    pair.theirs = reinterpret_cast<ShmPairLine*>(memory_ + layout_.pair_line(other, rank_));
    if (other != rank_) {
      pair.send_window = memory_ + layout_.scatter_window(rank_, other);
      pair.take_window = memory_ + layout_.scatter_window(other, rank_);
    }
    members_[other].line = reinterpret_cast<ShmMemberLine*>(memory_ + layout_.member_line(other));
  }
}

void ShmWindows::finish_rounds(std::uint64_t rounds) {
  round_ += rounds;
  if (consumed_ != round_) {
    mark_consumed(round_ - 1);
    ring_all();
  }
}

bool ShmWindows::can_publish(std::uint64_t round) {
  const std::uint64_t wanted = round + 1;
  for (std::size_t step = 1; step < layout_.size; ++step) {
    Member& of = members_[peer(step)];
    if (!reached(of.seen_consumed + layout_.depth, wanted)) {
      of.seen_consumed = load(of.line->consumed);
      if (!reached(of.seen_consumed + layout_.depth, wanted)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace lightcc
