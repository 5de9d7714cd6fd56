// Where everything lies in the shared memory of a ShmGroup: pure arithmetic over (size, options),
// so that no member has to believe an offset that another member wrote.
//
//   MemberLine[n]           written by member i, read by all
//   PairLine[n][n]          written by member i, read by member j
//   scatter windows         [n][n-1][depth] slots of slot_bytes: what another member has for i.
//                           What one member reads is together, because the kernel maps pages around
//                           one that is read, and each page counts as memory of the process
//   alone result windows          [n][depth] slots of slot_bytes: what member i has for everybody
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/collectives/shm/shm_group.hpp"

namespace lightcc {

/// Two cache lines: adjacent lines are fetched in pairs, and no two writers share one.
inline constexpr std::size_t kShmLine = 128;

/// Counters of member i for everybody. They only grow.
struct alignas(kShmLine) ShmMemberLine {
  std::uint64_t published;  ///< Result rounds [0, published) that i had something for are written.
  std::uint64_t
      consumed;  ///< Result rounds [0, consumed) of all other members have been read by i.
};
static_assert(sizeof(ShmMemberLine) == kShmLine);

/// Counters of member i for member j. They only grow.
struct alignas(kShmLine) ShmPairLine {
  std::uint64_t sent;   ///< Slots that i has filled in its scatter window for j.
  std::uint64_t taken;  ///< Slots of j's scatter window for i that i has emptied.
};
static_assert(sizeof(ShmPairLine) == kShmLine);

struct ShmLayout {
  ShmLayout(int members, const ShmGroupOptions& options);

  std::size_t size;        ///< Members, at least 1.
  std::size_t depth;       ///< Slots per window, at least 1.
  std::size_t slot_bytes;  ///< One member's share of a round. A multiple of 64.

  std::size_t member_line(std::size_t member) const { return member * kShmLine; }
  std::size_t pair_line(std::size_t writer, std::size_t reader) const {
    return (size + writer * size + reader) * kShmLine;
  }
  /// Where the first slot is; the others follow. `writer` and `reader` differ.
  std::size_t scatter_window(std::size_t writer, std::size_t reader) const {
    const std::size_t index = reader * (size - 1) + writer - (writer > reader ? 1 : 0);
    return scatter_base_ + index * depth * slot_bytes;
  }
  std::size_t result_slot(std::size_t writer, std::size_t slot) const {
    return result_base_ + (writer * depth + slot) * slot_bytes;
  }
  /// A multiple of the page size, so that groups may lie one after another in one segment.
  std::size_t total_bytes() const { return total_bytes_; }

 private:
  std::size_t scatter_base_;
  std::size_t result_base_;
  std::size_t total_bytes_;
};

}  // namespace lightcc
