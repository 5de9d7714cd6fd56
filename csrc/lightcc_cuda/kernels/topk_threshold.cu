// From which magnitude on elements are selected: compression/topk/threshold.hpp and the decisions
// of compression/topk/topk_step.cpp, taken on the GPU. Counts are integers, and one thread computes
// each forecast in float64, so the bits are those of the CPU.
#include "lightcc_cuda/kernels/topk_elements.hpp"

namespace lightcc::cuda {

// ---- Histograms.

/// Bins of a block of threads, added to the tensor's at the end.
struct BlockBins {
  u32* bins;  ///< Shared memory.

  LIGHTCC_DEVICE_MEMBER void clear() const {
    for (u32 i = thread_index(); i < kTopkBins; i += kTopkThreads) {
      bins[i] = 0;
    }
    sync_block();
  }
  LIGHTCC_DEVICE_MEMBER void add_to(u32* of_tensor) const {
    sync_block();
    for (u32 i = thread_index(); i < kTopkBins; i += kTopkThreads) {
      if (bins[i] != 0) {
        atomic_add(of_tensor + i, bins[i]);
      }
    }
  }
};

/// A bin, and how many elements the bins above it have.
struct FoundBin {
  u32 bin;
  u32 above;
  u32 here;
};

/// The highest bin, of those from `lowest` on, for which it and the bins above have `wanted`
/// elements, as `reaches(count)` says; `here` is 0 where none does. All threads get the answer.
template <typename Reaches>
LIGHTCC_DEVICE_MEMBER FoundBin find_bin(const u32* bins, u32 lowest, const Reaches& reaches) {
  constexpr u32 kBinsOfThread = kTopkBins / kTopkThreads;
  LIGHTCC_SHARED(u32, sums, kTopkThreads);
  LIGHTCC_SHARED(FoundBin, found, 1);
  const u32 first = thread_index() * kBinsOfThread;
  u32 sum = 0;
  for (u32 i = max_of(first, lowest); i < first + kBinsOfThread; ++i) {
    sum += bins[i];
  }
  sums[thread_index()] = sum;
  sync_block();
  if (thread_index() == 0) {
    u32 above = 0;
    u32 thread = kTopkThreads - 1;
    while (thread > 0 && !reaches(above + sums[thread])) {
      above += sums[thread--];
    }
    const u32 begin = max_of(thread * kBinsOfThread, lowest);
    u32 bin = thread * kBinsOfThread + kBinsOfThread - 1;
    while (bin > begin && !reaches(above + bins[bin])) {
      above += bins[bin--];
    }
    found[0] = {bin, above, reaches(above + bins[bin]) ? bins[bin] : 0};
  }
  sync_block();
  return found[0];
}

LIGHTCC_DEVICE void clear_bins(u32* bins) {
  sync_block();  // All have read them.
  for (u32 i = thread_index(); i < kTopkBins; i += kTopkThreads) {
    bins[i] = 0;
  }
}

// ---- Forecasts.

LIGHTCC_DEVICE double lane_of_key(u32 key) {
  return static_cast<double>(__builtin_bit_cast(float, key));
}

/// TopkForecast make_forecast() of topk_step.cpp.
LIGHTCC_DEVICE TopkForecastBits make_forecast(const TopkForecastBits& last, u64 k, double ideal) {
  constexpr double kNoise = 0.03;
  TopkForecastBits next{ideal, ideal, k};
  const double change = ideal - last.ideal;
  if (last.k == k && last.ideal > 0.0 && change != 0.0) {
    const double size = change < 0.0 ? -change : change;
    const double trust = size / (size + kNoise * ideal);
    const double guess = ideal + trust * change;
    next.threshold = max_of(ideal / 2, min_of(guess, ideal * 2));
  }
  next.threshold = min_of(next.threshold, lane_of_key(kInfiniteKey - 1));
  return next;
}

/// Where a bin of the sample begins: the bits of a float32 without its lower 19.
LIGHTCC_DEVICE double edge_of(u32 bin) {
  // The last ends before infinity.
  return lane_of_key(min_of(bin << (kKeyBits - kTopkBinBits), kInfiniteKey - 1));
}

/// next_forecast() of topk_step.cpp, after a selection that held. All threads take part.
LIGHTCC_DEVICE void write_next_forecast(const TopkTensor& t, TopkProgress& progress) {
  const u32 reached = progress.reached;
  const bool is_known = progress.selected != 0 && reached != 0;
  const double wanted = is_known ? static_cast<double>(t.k) * static_cast<double>(reached) /
                                       static_cast<double>(progress.selected)
                                 : 0.0;
  const FoundBin found = find_bin(
      t.bins, 1, [wanted](u32 count) { return count > 0 && static_cast<double>(count) >= wanted; });
  if (thread_index() != 0) {
    return;
  }
  double ideal = 0.0;
  if (is_known && found.here != 0) {
    const double begin = edge_of(found.bin);
    const double width = edge_of(found.bin + 1) - begin;
    const double missing = wanted - static_cast<double>(found.above);
    ideal = begin + width * (1.0 - missing / static_cast<double>(found.here));
  }
  if (ideal > 0.0) {
    progress.next = make_forecast(progress.forecast, t.k, ideal);
  } else if (is_known || progress.key == 1) {
    progress.next = make_forecast(progress.forecast, t.k, lane_of_key(1));
  } else {
    progress.next = TopkForecastBits{0.0, 0.0, 0};
  }
}

// ---- Kernels with a block for each tensor.

LIGHTCC_KERNEL(kTopkThreads, 3) lightcc_topk_begin(const TopkArguments a) {
  const TopkTensor& t = a.tensors[block_index()];
  TopkProgress& progress = *t.progress;
  const u64 words = 2 * tiles_of(t.numel, kTopkTile);
  for (u64 i = thread_index(); i < words; i += kTopkThreads) {
    t.status[i] = 0;
  }
  clear_bins(t.bins);
  if (block_index() == 0 && thread_index() < 2) {
    a.tile_counters[thread_index()] = 0;
  }
  if (thread_index() != 0) {
    return;
  }
  constexpr u32 kUnlimited = ~u32{0};
  const TopkForecastBits& forecast = t.forecast;
  progress.forecast = forecast;
  progress.step = t.step;
  progress.current = t.current;
  progress.path = TopkPath::kExact;
  progress.key = 0;
  if (t.k == t.numel) {
    progress.path = TopkPath::kEverything;
  } else if (t.exact == 0 && forecast.threshold > 0.0 && forecast.k == t.k) {
    progress.path = TopkPath::kForecast;
    progress.key = max_of<u64>(key_of(static_cast<float>(forecast.threshold)), 1);
  }
  progress.ties = kUnlimited;
  progress.runs_in_round = progress.path == TopkPath::kExact ? 0 : 1;
  progress.next = TopkForecastBits{0.0, 0.0, 0};
  progress.selected = 0;
  progress.listed = 0;
  progress.non_finite = 0;
  progress.reached = 0;
  progress.prefix = 0;
  progress.shift = kKeyBits;
  progress.wanted = static_cast<u32>(t.k);
}

LIGHTCC_KERNEL(kTopkThreads, 3) lightcc_topk_judge(const TopkArguments a) {
  const TopkTensor& t = a.tensors[block_index()];
  TopkProgress& progress = *t.progress;
  if (progress.path != TopkPath::kForecast || progress.non_finite != 0) {
    return;
  }
  const u64 selected = progress.selected;
  // A threshold that zeros alone do not reach cannot be lowered, however few reach it.
  const bool held = selected <= t.k + t.k / 4 && (progress.key == 1 || 3 * selected >= 2 * t.k);
  sync_block();  // All have read what is written below.
  if (held) {
    write_next_forecast(t, progress);
    return;
  }
  clear_bins(t.bins);
  if (thread_index() == 0) {
    progress.path = TopkPath::kExact;
  }
}

LIGHTCC_KERNEL(kTopkThreads, 3) lightcc_topk_descend(const TopkArguments a) {
  const TopkTensor& t = a.tensors[block_index()];
  TopkProgress& progress = *t.progress;
  if (progress.path != TopkPath::kExact || progress.non_finite != 0 || progress.shift == 0) {
    return;
  }
  const u32 wanted = progress.wanted;
  const FoundBin found = find_bin(t.bins, 0, [wanted](u32 count) { return count >= wanted; });
  clear_bins(t.bins);
  if (thread_index() != 0) {
    return;
  }
  const u32 bits = min_of(progress.shift, kTopkBinBits);
  progress.prefix = progress.prefix << bits | found.bin;
  progress.wanted = wanted - found.above;
  progress.shift -= bits;
  if (progress.shift == 0) {
    const bool is_zero = progress.prefix == 0 && t.exact == 0;
    progress.key = is_zero ? 1 : progress.prefix;  // Zeros need not travel.
    progress.ties = is_zero ? progress.ties : progress.wanted;
    progress.runs_in_round = 2;
  }
}

LIGHTCC_KERNEL(kTopkThreads, 3) lightcc_topk_finish(const TopkArguments a) {
  const TopkTensor& t = a.tensors[block_index()];
  TopkProgress& progress = *t.progress;
  const bool is_flagged = progress.non_finite != 0;
  const u32 entries = is_flagged ? 0 : progress.listed;
  const u64 blocks = tiles_of(t.numel, kTopkWireBlock);
  for (u64 i = thread_index(); i < blocks; i += kTopkThreads) {
    const u32 end = i + 1 < blocks ? t.block_begins[i + 1] : entries;
    t.counts[i] = is_flagged ? 0 : end - t.block_begins[i];
    if (t.exponents != nullptr) {
      t.exponents[i] = 0;  // For encode to change.
    }
  }
  if (thread_index() != 0) {
    return;
  }
  const u64 flags =
      (is_flagged ? kTopkFlagNonFinite : 0) | (t.exponents != nullptr ? kTopkFlagScales : 0);
  t.header[0] = kTopkMagic | u64{t.dtype} << kTopkDtypeShift | flags << kTopkFlagsShift;
  t.header[1] = entries;
  if (is_flagged) {
    progress.next = progress.forecast;
  } else if (progress.path == TopkPath::kExact) {
    progress.next =
        make_forecast(progress.forecast, t.k, lane_of_key(static_cast<u32>(progress.key)));
  }
}

// ---- Kernels with `parts` blocks for each tensor.

/// Every stride-th group of 16 elements, other groups in every step.
LIGHTCC_KERNEL(kTopkThreads, 3) lightcc_topk_sample(const TopkArguments a) {
  constexpr u64 kGroup = 16;
  constexpr u64 kSampledSelected = 256;
  constexpr u64 kMaxStride = 64;
  const TopkTensor& t = a.tensors[row_of_part(a)];
  TopkProgress& progress = *t.progress;
  if (progress.path != TopkPath::kForecast) {
    return;
  }
  LIGHTCC_SHARED(u32, memory, kTopkBins);
  const BlockBins bins{memory};
  bins.clear();
  const TopkReader reader(t, static_cast<ElementType>(t.dtype));
  u64 stride = 1;
  while (stride < kMaxStride && stride * 2 <= t.k / kSampledSelected) {
    stride *= 2;
  }
  const u64 skipped = progress.step % stride;
  u32 reached = 0;
  for (u64 i = (block_index() - t.first_part) * kTopkThreads + thread_index();;
       i += u64{t.parts} * kTopkThreads) {
    const u64 element = (skipped + i / kGroup * stride) * kGroup + i % kGroup;
    if (element >= t.numel) {
      break;
    }
    // What is not finite counts as the largest number.
    const u32 key = key_of(reader.acc_at(element));
    atomic_add(memory + (min_of(key, kInfiniteKey - 1) >> (kKeyBits - kTopkBinBits)), 1);
    reached += key >= progress.key ? 1 : 0;
  }
  bins.add_to(t.bins);
  const u32 of_warp = sum_of_warp(reached);
  if (thread_index() % kWarpLanes == 0 && of_warp != 0) {
    atomic_add(&progress.reached, of_warp);
  }
}

/// Counts, of the keys that begin with the prefix, which bits come next.
template <typename Element>
LIGHTCC_DEVICE_MEMBER void count(const TopkArguments& a) {
  const TopkTensor& t = a.tensors[row_of_part(a)];
  TopkProgress& progress = *t.progress;
  const u32 shift = progress.shift;
  const bool is_first = shift == kKeyBits;
  if (progress.path != TopkPath::kExact || (!is_first && progress.non_finite != 0) || shift == 0) {
    return;
  }
  LIGHTCC_SHARED(u32, memory, kTopkBins);
  const BlockBins bins{memory};
  bins.clear();
  const BatchReader<Element> reader(t);
  const u32 bits = min_of(shift, kTopkBinBits);
  const auto prefix = static_cast<u32>(progress.prefix);
  const u32 mask = (1U << bits) - 1U;
  bool bad = false;
  const auto add = [&](float acc) {
    const u32 key = key_of(acc);
    bad = bad || key >= kInfiniteKey;
    if (is_first || key >> shift == prefix) {
      atomic_add(memory + (key >> (shift - bits) & mask), 1);
    }
  };
  constexpr u64 kStride = kTopkThreads * kLaneElements;
  for (u64 at =
           (block_index() - t.first_part) * kBatches * kStride + thread_index() * kLaneElements;
       at < reader.numel;
       at += t.parts * kBatches * kStride) {
    if (reader.has(at, kStride)) {
      Accumulated four[kBatches];
      reader.accumulate(at, kStride, four);
      LIGHTCC_UNROLL
      for (u32 j = 0; j < kBatches * kLaneElements; ++j) {
        add(four[j / kLaneElements].acc[j % kLaneElements]);
      }
      continue;
    }
    for (u32 j = 0; j < kBatches * kLaneElements; ++j) {
      const u64 element = at + j / kLaneElements * kStride + j % kLaneElements;
      if (element >= reader.numel) {
        break;
      }
      add(reader.acc_at(element));
    }
  }
  bins.add_to(t.bins);
  if (vote(is_first && bad) != 0 && thread_index() % kWarpLanes == 0) {
    atomic_or(&progress.non_finite, 1);
  }
}

#define LIGHTCC_DEFINE(name, function, type)                    \
  LIGHTCC_KERNEL(kTopkThreads, 3) name(const TopkArguments a) { \
    function<type>(a);                                          \
  }
LIGHTCC_OF_ELEMENTS(LIGHTCC_DEFINE, lightcc_topk_count, count)

}  // namespace lightcc::cuda
