#include "lightcc/collectives/shm/shm_work.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lightcc {

ShmWork::~ShmWork() {
  if (!done_) {
    // The others may be anywhere in this operation; nobody can say what a slot holds from now on.
    state_->dropped = true;
  }
  if (state_->running == this) {
    state_->running = nullptr;
  }
}

Result<Progress> ShmWork::advance() {
  if (state_->dropped) {
    return make_error(ErrorCode::kInternal,
                      "an earlier operation of this shared-memory group was dropped before it was "
                      "done; the group cannot be used any more");
  }
  if (done_ || (state_->running != nullptr && state_->running != this)) {
    return make_error(ErrorCode::kInternal,
                      "operations of one shared-memory group must run one after another");
  }
  if (state_->running == nullptr) {
    state_->running = this;
    begin();
  }
  const Progress progress = step();
  if (progress == Progress::kDone) {
    done_ = true;
    state_->running = nullptr;
  }
  return progress;
}

// hot
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  constexpr std::size_t kLine = 64;
  const std::size_t before_line =
      std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  copy_bytes(to, from, before_line);
  std::size_t done = before_line;
  for (; bytes - done >= kLine; done += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + done);
    auto* const target = reinterpret_cast<__m128i*>(to + done);
    const __m128i first = _mm_loadu_si128(source);
    const __m128i second = _mm_loadu_si128(source + 1);
    const __m128i third = _mm_loadu_si128(source + 2);
    const __m128i fourth = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, first);
    _mm_stream_si128(target + 1, second);
    _mm_stream_si128(target + 2, third);
    _mm_stream_si128(target + 3, fourth);
  }
  copy_bytes(to + done, from + done, bytes - done);
  // Such stores are not ordered by a release: whoever learns that this Work is done must see them.
  _mm_sfence();
#else
  copy_bytes(to, from, bytes);
#endif
}

}  // namespace lightcc
