// LowRankState::load() against arbitrary bytes, as they are and with a right checksum; what loads
// must save to the same bytes, take a step, and be divided so that the sum of what is kept back
// stays.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/compression/low_rank_state.hpp"

#include "saved_state.hpp"

namespace {

using lightcc::Bytes;
using lightcc::LowRankState;
using lightcc::require;

void check_division(const LowRankState& state, const Bytes& bytes) {
  const std::vector<std::span<const std::byte>> one = {bytes};
  const auto first = LowRankState::reshard(one, 2, 0);
  const auto second = LowRankState::reshard(one, 2, 1);
  require(first.ok() && second.ok());
  for (std::size_t i = 0; i < state.numel(); ++i) {
    require(first->residual_at(i) == state.residual_at(i));
    require(second->residual_at(i) == 0.0);
  }
}

/// Of a gradient of zeros. It is void where what is kept back is too large.
void check_step(LowRankState& state, const Bytes& bytes) {
  const std::size_t lane = lightcc::element_size(state.lane_dtype());
  // As vectors of doubles, factors are aligned.
  std::vector<double> left(state.left_elems() * lane / sizeof(double) + 1);
  std::vector<double> right(state.right_elems() * lane / sizeof(double) + 1);
  Bytes out(state.numel() * lightcc::element_size(state.dtype()));
  std::byte* const l = std::as_writable_bytes(std::span(left)).data();
  std::byte* const r = std::as_writable_bytes(std::span(right)).data();
  require(state.project(nullptr, 1.0, l).ok());
  if (!state.orthonormalise(l)) {
    state.rollback();
  } else {
    require(state.collect(l, r).ok());
    const auto good = state.finish(l, r, 1.0, out.data());
    require(good.ok());
    if (*good) {
      require(LowRankState::load([&] {
                Bytes saved;
                require(state.save(saved).ok());
                return saved;
              }())
                  .ok());
      return;
    }
  }
  lightcc::require_same_bytes(state, bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const Bytes bytes = lightcc::saved_state(data, size);
  auto state = LowRankState::load(bytes);
  if (!state.ok()) {
    return 0;
  }
  lightcc::require_same_bytes(*state, bytes);
  check_division(*state, bytes);
  check_step(*state, bytes);
  return 0;
}
