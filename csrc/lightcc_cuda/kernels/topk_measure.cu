// How much a step keeps back: measure_energy() of compression/residual/step_energy.hpp, bit for
// bit. It reads a sample of at most 64 runs of 64 elements, one for each thread, and one thread
// adds them up.
#include "lightcc_cuda/kernels/topk_elements.hpp"

namespace lightcc::cuda {

inline constexpr u64 kRunElements = 64;
inline constexpr u64 kRuns = 32;  // Runs of a sample; up to the double of that.
inline constexpr u32 kMaxRuns = 64;

/// The sum of the squares of `count` values, in the order of step_energy.cpp.
template <typename Read>
LIGHTCC_DEVICE_MEMBER double sum_of_squares(u64 first, u64 count, const Read& read) {
  constexpr u32 kSums = 8;
  double sums[kSums] = {};
  LIGHTCC_NO_UNROLL
  for (u64 i = 0; i < count; i += kSums) {
    LIGHTCC_UNROLL
    for (u32 j = 0; j < kSums; ++j) {
      if (i + j < count) {
        const auto value = static_cast<double>(read(first + i + j));
        sums[j] += value * value;
      }
    }
  }
  double sum = 0.0;
  LIGHTCC_UNROLL
  for (u32 j = 0; j < kSums; ++j) {
    sum += sums[j];
  }
  return sum;
}

template <typename Element>
LIGHTCC_DEVICE_MEMBER void measure(const TopkArguments& a) {
  using Wire = typename Element::Wire;
  LIGHTCC_SHARED(double, input, kMaxRuns);
  LIGHTCC_SHARED(double, kept, kMaxRuns);
  const TopkTensor& t = a.tensors[block_index()];
  TopkProgress& progress = *t.progress;
  u64 stride = 1;
  while (stride * 2 <= t.numel / kRunElements / kRuns) {
    stride *= 2;
  }
  constexpr u64 kScatter = 0x9e3779b97f4a7c15;
  const u64 skipped = progress.step * kScatter % stride;
  const auto count_at = [&](u32 run) {
    const u64 first = (skipped + run * stride) * kRunElements;
    return first < t.numel ? min_of(kRunElements, t.numel - first) : 0;
  };
  const u32 own = thread_index();
  if (own < kMaxRuns) {
    const u64 first = (skipped + own * stride) * kRunElements;
    const u8* const next = t.residual[1 - progress.current];
    kept[own] = sum_of_squares(
        first, count_at(own), [next](u64 i) { return TopkReader<Element>::lane_at(next, i); });
    input[own] = sum_of_squares(first, count_at(own), [&t](u64 i) {
      return Element::decode(load_any<Wire>(t.shard + i * sizeof(Wire)));
    });
  }
  sync_block();
  if (own != 0) {
    return;
  }
  double all_input = 0.0;
  double all_kept = 0.0;
  u64 sampled = 0;
  for (u32 run = 0; run < kMaxRuns && count_at(run) != 0; ++run) {
    all_input += input[run];
    all_kept += kept[run];
    sampled += count_at(run);
  }
  const double share = static_cast<double>(t.numel) / static_cast<double>(max_of<u64>(sampled, 1));
  progress.input_energy = all_input * share;
  progress.kept_energy = all_kept * share;
}

#define LIGHTCC_DEFINE(name, function, type)                    \
  LIGHTCC_KERNEL(kTopkThreads, 3) name(const TopkArguments a) { \
    function<type>(a);                                          \
  }
LIGHTCC_TOPK_MEASURE_KERNELS(LIGHTCC_DEFINE)

}  // namespace lightcc::cuda
