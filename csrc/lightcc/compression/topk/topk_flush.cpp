// The step in which a tensor travels dense: what compression still owes is added to it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/kernels/float_types.hpp"
#include "lightcc/compression/kernels/topk_block.hpp"
#include "lightcc/compression/topk/topk_step.hpp"

namespace lightcc::detail {
namespace {

/// acc of so many elements at a time, in the L1 cache.
constexpr std::size_t kFlushedElems = 2048;

template <typename Type>
[[gnu::noinline]] bool flush(const TopkStepJob& job, std::byte* shard) {
  using Lane = Type::Lane;
  using Wire = Type::Wire;
  // Each chunk is written before it is read.
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init)
  std::array<std::byte, (kFlushedElems + kTopkBlockSlack) * sizeof(Lane)> sums;
  const TopkBlockKernel kernel = topk_block_kernel(job.level);
  bool finite = true;
  for (std::size_t first = 0; first < job.numel; first += kFlushedElems) {
    TopkBlockJob block{.shard = shard + first * sizeof(Wire),
                       .residual = job.residual->current() + first * sizeof(Lane),
                       .count = std::min(kFlushedElems, job.numel - first),
                       .dtype = job.dtype,
                       .momentum = job.momentum,
                       .values = sums.data()};
    if (job.velocity != nullptr) {
      block.velocity = job.velocity->current() + first * sizeof(Lane);
    }
    finite = !kernel(block).non_finite && finite;
    std::byte* next = job.residual->next() + first * sizeof(Lane);
    for (std::size_t i = 0; i < block.count; ++i) {
      const Lane acc = load_as<Lane>(sums.data() + i * sizeof(Lane));
      const Wire wire = Type::encode_saturating(acc);
      store_as(shard + (first + i) * sizeof(Wire), wire);
      store_as(next + i * sizeof(Lane), Type::kRounds ? acc - Type::decode(wire) : Lane{0});
    }
  }
  if (job.velocity != nullptr) {
    std::memset(job.velocity->next(), 0, job.numel * sizeof(Lane));
  }
  return finite;
}

}  // namespace

bool run_topk_flush(const TopkStepJob& job, std::byte* shard) {
  const IeeeFloatMode mode;
  return with_float_type(job.dtype, [&](auto type) { return flush<decltype(type)>(job, shard); });
}

}  // namespace lightcc::detail
