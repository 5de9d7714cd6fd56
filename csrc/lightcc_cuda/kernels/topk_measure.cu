// How much a step keeps back: measure_energy() of compression/residual/step_energy.hpp, bit for
// bit. It reads a sample of at most 64 runs of 64 elements, of the input and of what is kept. Each
// thread adds up every eighth square of a run, and one thread adds up runs.
#include "lightcc_cuda/kernels/topk_elements.hpp"

namespace lightcc::cuda {

inline constexpr u64 kRunElements = 64;
inline constexpr u64 kRuns = 32;  // Runs of a sample; up to the double of that.
inline constexpr u32 kMaxRuns = 64;
inline constexpr u32 kSums = 8;  // Sums of a run, which step_energy.cpp adds up in this order.

LIGHTCC_KERNEL(kTopkThreads, 3) lightcc_topk_measure(const TopkArguments a) {
  // Runs of the input, then those of what is kept.
  LIGHTCC_SHARED(double, sums, 2 * kMaxRuns * kSums);
  const TopkTensor& t = a.tensors[block_index()];
  TopkProgress& progress = *t.progress;
  u64 stride = 1;
  while (stride * 2 <= t.numel / kRunElements / kRuns) {
    stride *= 2;
  }
  constexpr u64 kScatter = 0x9e3779b97f4a7c15;
  const u64 skipped = progress.step * kScatter % stride;
  const auto first_of = [&](u32 run) { return (skipped + run * stride) * kRunElements; };
  const auto end_of = [&](u32 run) { return min_of(first_of(run) + kRunElements, t.numel); };
  LIGHTCC_NO_UNROLL
  for (u32 i = thread_index(); i < 2 * kMaxRuns * kSums; i += kTopkThreads) {
    const u32 run = i / kSums % kMaxRuns;
    const bool is_input = i < kMaxRuns * kSums;
    const u8* const array = is_input ? t.shard : t.residual[1 - progress.current];
    const auto type = is_input ? static_cast<ElementType>(t.dtype) : ElementType::kFloat32;
    double sum = 0.0;
    LIGHTCC_NO_UNROLL
    for (u64 at = first_of(run) + i % kSums; at < end_of(run); at += kSums) {
      const auto value = static_cast<double>(load_lane(type, array, at));
      sum += value * value;
    }
    sums[i] = sum;
  }
  sync_block();
  if (thread_index() >= 2) {
    return;
  }
  // One thread for the input, and one for what is kept.
  double all = 0.0;
  u64 sampled = 0;
  LIGHTCC_NO_UNROLL
  for (u32 run = 0; run < kMaxRuns && first_of(run) < t.numel; ++run) {
    double sum = 0.0;
    LIGHTCC_NO_UNROLL
    for (u32 j = 0; j < kSums; ++j) {
      sum += sums[(thread_index() * kMaxRuns + run) * kSums + j];
    }
    all += sum;
    sampled += end_of(run) - first_of(run);
  }
  const double share = static_cast<double>(t.numel) / static_cast<double>(max_of<u64>(sampled, 1));
  (thread_index() == 0 ? progress.input_energy : progress.kept_energy) = all * share;
}

}  // namespace lightcc::cuda
