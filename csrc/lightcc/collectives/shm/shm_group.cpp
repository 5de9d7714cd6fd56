// Collectives between ranks that share memory, through windows that stay in the cache.
//
// The plain way (everyone copies its bucket into shared memory, reduces, copies back) moves every
// byte through memory six times. Here each rank writes only what OTHERS need into a small window,
// reduces its own share straight from its tensors and the others' windows into its tensors and a
// result window, and copies the others' results into its tensors. The windows are reused round
// after round and never leave the caches, so that memory sees each tensor read once and written
// once.
//
//     round r           rank 0                                rank 1
//     scatter           x0[share 1] -> window 0>1             x1[share 0] -> window 1>0
//     reduce            x0[share 0] + window 1>0              window 0>1 + x1[share 1]
//                         -> x0[share 0], result 0              -> x1[share 1], result 1
//     gather            result 1 -> x0[share 1]               result 0 -> x1[share 0]
//
// Rounds overlap, `depth` of them at most. The contributions to an element are combined by its
// owner in member order 0, 1, ..., n-1 wherever it lies, so results do not depend on the cut; in a
// direct exchange (shm_direct_work.cpp) every member does the same sum for itself, with the same
// bits.
//
// Windows are written by copies only, not by arithmetic. The others still have the slot's old lines
// in their caches; a long copy takes lines over without fetching them, ordinary stores fetch each
// one first, and between distant cores that alone doubles the time of an allreduce.
//
//     operation             windows                  file
//     allreduce             scatter and result       shm_reduce_work.cpp, shm_direct_work.cpp
//     reduce_scatter        scatter                  shm_reduce_work.cpp
//     allgather, broadcast  result                   shm_gather_work.cpp
//     alltoall, send, recv  scatter                  shm_pair_work.cpp
//     barrier               result (flags only)      shm_direct_work.cpp
//
// Invariants. Slots are numbered without end and counted by each member for itself: per ordered
// pair for scatter windows, per round for result windows (shm_windows.hpp). An operation ends on a
// member when the member has taken everything addressed to it; what it published may still be read
// by others, in the group's memory, not the caller's. So operations follow each other without a
// barrier.
//
// Not handled here: the death of a member (Works just stay kIdle; liveness is the engine's),
// members that disagree about an operation (the sequencer matches them first; here they would get
// wrong bytes or wait, but nobody leaves the windows), and NUMA: pages lie where the maker of the
// memory had them allocated.

#include "lightcc/collectives/shm/shm_group.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/checked_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/shm/shm_layout.hpp"
#include "lightcc/collectives/shm/shm_windows.hpp"
#include "lightcc/collectives/shm/shm_work.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/shm/doorbell.hpp"

namespace lightcc {

namespace {

class ShmGroup final : public Group {
 public:
  ShmGroup(std::shared_ptr<ShmState> state, std::size_t direct_bytes)
      : state_(std::move(state)), direct_bytes_(direct_bytes) {}

  int rank() const override { return static_cast<int>(state_->windows.rank()); }
  int size() const override { return static_cast<int>(state_->windows.size()); }

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                  const Reduction& reduction) override {
    std::size_t elements = 0;
    for (const TensorSpan& tensor : tensors) {
      elements += tensor.count;
    }
    if (size() > 1 && elements * element_size(reduction.dtype) <= direct_bytes_) {
      return make_shm_direct_allreduce(state_, tensors, reduction);
    }
    return make_shm_allreduce(state_, tensors, reduction);
  }
  std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                       std::byte* out,
                                       std::vector<std::size_t> counts,
                                       const Reduction& reduction) override {
    const std::size_t width = element_size(reduction.dtype);
    return make_shm_reduce_scatter(
        state_, blocks_of(in, out, counts, rank(), width), counts, reduction);
  }
  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    return make_shm_reduce_scatter(state_, tensors, counts, reduction);
  }
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    return make_shm_gather(state_, gathered_blocks(in, out, bytes, rank()), bytes);
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    count_bytes(tensors, counts, element_size(dtype));
    return make_shm_gather(state_, tensors, counts);
  }
  std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) override {
    std::vector<std::size_t> blocks(state_->windows.size(), 0);
    blocks[static_cast<std::size_t>(root)] = bytes;
    return make_shm_gather(state_, {{.in = data, .out = data, .count = bytes}}, blocks);
  }
  std::unique_ptr<Work> alltoall(const std::byte* in,
                                 std::vector<std::size_t> send_bytes,
                                 std::byte* out,
                                 std::vector<std::size_t> recv_bytes) override {
    const std::size_t rank = state_->windows.rank();
    std::vector<ShmFlow> flows(send_bytes.size());
    for (std::size_t member = 0; member < flows.size(); ++member) {
      flows[member] = {
          .peer = member, .in = {in, send_bytes[member]}, .out = {out, recv_bytes[member]}};
      in += send_bytes[member];
      out += recv_bytes[member];
    }
    // Members begin with different peers.
    std::ranges::rotate(flows, flows.begin() + static_cast<std::ptrdiff_t>(rank));
    return make_shm_pairs(state_, flows);
  }
  std::unique_ptr<Work> send(const std::byte* in, std::size_t bytes, int peer) override {
    return pair(peer, {in, bytes}, {});
  }
  std::unique_ptr<Work> recv(std::byte* out, std::size_t bytes, int peer) override {
    return pair(peer, {}, {out, bytes});
  }
  std::unique_ptr<Work> barrier() override { return make_shm_barrier(state_); }

 private:
  std::unique_ptr<Work> pair(int peer,
                             std::span<const std::byte> in,
                             std::span<std::byte> out) const {
    return make_shm_pairs(state_,
                          {ShmFlow{.peer = static_cast<std::size_t>(peer), .in = in, .out = out}});
  }

  std::shared_ptr<ShmState> state_;
  std::size_t direct_bytes_;
};

}  // namespace

// Measured. Shares below 64 KiB pay for flags, above 128 KiB they
// leave the second-level cache; large groups are kept to tens of MiB of windows.
ShmGroupOptions default_shm_options(int size) {
  constexpr std::size_t kKiB = 1024;
  const auto members = static_cast<std::size_t>(std::max(size, 1));
  ShmGroupOptions options;
  options.chunk_bytes =
      members > 16 ? 256 * kKiB : std::clamp(members * 128 * kKiB, 256 * kKiB, 512 * kKiB);
  options.depth = members > 16 ? 2 : 4;
  options.direct_bytes =
      members <= 2 ? 512 * kKiB : std::clamp(32 * kKiB / members, kKiB, 8 * kKiB);
  return options;
}

std::size_t shm_group_bytes(int size, const ShmGroupOptions& options) {
  return ShmLayout(size, options).total_bytes();
}

std::unique_ptr<Group> make_shm_group(std::span<std::byte> memory,
                                      int rank,
                                      std::vector<Doorbell> doorbells,
                                      const ShmGroupOptions& options) {
  const int size = static_cast<int>(doorbells.size());
  const ShmLayout layout(size, options);
  const bool aligned = reinterpret_cast<std::uintptr_t>(memory.data()) % kShmLine == 0;
  if (rank < 0 || rank >= size || !aligned || memory.size() < layout.total_bytes()) {
    return nullptr;
  }
  ShmWindows windows(memory, static_cast<std::size_t>(rank), layout, std::move(doorbells));
  return make_checked_group(std::make_unique<ShmGroup>(
      std::make_shared<ShmState>(std::move(windows), options.simd), options.direct_bytes));
}

}  // namespace lightcc
