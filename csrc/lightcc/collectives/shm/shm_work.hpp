// What the Works of a ShmGroup share: turns taken one after another, and what a dropped one leaves.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/shm/shm_windows.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

class ShmWork;

/// Shared by a group and its Works, so that either may go first.
struct ShmState {
  ShmState(ShmWindows windows_in, SimdLevel simd_in)
      : windows(std::move(windows_in)), simd(simd_in) {}

  ShmWindows windows;
  SimdLevel simd;
  const ShmWork* running = nullptr;  ///< The Work that has begun and is not done.
  bool dropped = false;              ///< A Work was dropped before it was done.
};

class ShmWork : public Work {
 public:
  explicit ShmWork(std::shared_ptr<ShmState> state) : state_(std::move(state)) {}
  ShmWork(const ShmWork&) = delete;
  ShmWork& operator=(const ShmWork&) = delete;
  ~ShmWork() override;

  Result<Progress> advance() final;

 protected:
  /// As advance(), once it is known to be this Work's turn. kDone is final.
  virtual Progress step() = 0;
  /// Called once, before the first step().
  virtual void begin() {}

  ShmWindows& windows() { return state_->windows; }
  SimdLevel simd() const { return state_->simd; }

  /// Steps of one advance(): a few windows' worth, so that one long operation does not keep the
  /// progress loop from everything else.
  static constexpr int kStepBudget = 16;

 private:
  std::shared_ptr<ShmState> state_;
  bool done_ = false;
};

/// Copies; a count of zero allows null pointers.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0 && to != from) {
    std::memcpy(to, from, bytes);
  }
}

/// Results of at least so many bytes are not in any cache when the caller gets to them.
inline constexpr std::size_t kPastCacheBytes = std::size_t{32} << 20;
/// Copies to memory that nobody has looked at or soon will: without reading it into the cache
/// first, where the machine can. shm_work.cpp.
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes);

// The Works, by file. Arguments have been checked.

/// shm_reduce_work.cpp: `tensors` and `reduction` are those of Group::allreduce.
std::unique_ptr<Work> make_shm_allreduce(std::shared_ptr<ShmState> state,
                                         const std::vector<TensorSpan>& tensors,
                                         const Reduction& reduction);
/// Member i owns counts[i] elements of `tensors`; only the own part's `out` is looked at.
std::unique_ptr<Work> make_shm_reduce_scatter(std::shared_ptr<ShmState> state,
                                              const std::vector<TensorSpan>& tensors,
                                              const std::vector<std::size_t>& counts,
                                              const Reduction& reduction);
/// shm_direct_work.cpp: the same result, for small inputs or two members.
std::unique_ptr<Work> make_shm_direct_allreduce(std::shared_ptr<ShmState> state,
                                                const std::vector<TensorSpan>& tensors,
                                                const Reduction& reduction);
std::unique_ptr<Work> make_shm_barrier(std::shared_ptr<ShmState> state);

/// shm_gather_work.cpp: `tensors` count bytes, of which member i has bytes[i], in its `in`; a
/// broadcast is a gather of a single block.
std::unique_ptr<Work> make_shm_gather(std::shared_ptr<ShmState> state,
                                      const std::vector<TensorSpan>& tensors,
                                      const std::vector<std::size_t>& bytes);

/// Bytes from this member to `peer` and from `peer` to this member. With itself: in to out.
struct ShmFlow {
  std::size_t peer = 0;
  std::span<const std::byte> in;
  std::span<std::byte> out;
};
/// shm_pair_work.cpp.
std::unique_ptr<Work> make_shm_pairs(std::shared_ptr<ShmState> state,
                                     const std::vector<ShmFlow>& flows);

}  // namespace lightcc
