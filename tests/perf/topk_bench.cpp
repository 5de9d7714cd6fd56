// How near top-k compression with error feedback comes to the memory's limit, in steady state, on
// one core: 12 bytes per float32 element (read the gradient, read the residual, write the next
// one), against loops of the same run that do nothing but move these bytes. Every list is checked.
// Prints a table; asserts no time.
//
// Arguments: numbers of elements in Mi (default: 1 16 128), then optionally one of float32,
// float16, bfloat16, float64 and "fp16". Each figure is the best of a number of rounds, the
// contenders in turns. The steps that did not find their threshold at once are counted and not
// timed.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "lightcc/base/half.hpp"
#include "lightcc/base/rng.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/merge.hpp"
#include "lightcc/compression/shard.hpp"
#include "lightcc/compression/step_energy.hpp"
#include "lightcc/compression/topk_list.hpp"
#include "lightcc/compression/topk_state.hpp"

namespace {

using lightcc::DataType;
using lightcc::SimdLevel;
using lightcc::TopkState;
using Clock = std::chrono::steady_clock;

constexpr double kRatio = 0.01;
constexpr int kSettlingSteps = 30;
constexpr int kRounds = 7;

struct Case {
  DataType dtype = DataType::kFloat32;
  bool fp16 = false;
  std::size_t numel = 0;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct alignas(64) Line {
  std::byte bytes[64];
};

/// Gradients that differ from step to step without being drawn anew: windows of one long buffer.
class Gradients {
 public:
  explicit Gradients(const Case& test)
      : size_(lightcc::element_size(test.dtype)), lines_((test.numel + kWindows) * size_ / 64 + 2) {
    lightcc::Rng rng(1);
    std::byte* to = lines_.front().bytes;
    for (std::size_t i = 0; i < test.numel + kWindows; ++i) {
      const double value = (rng.unit() + rng.unit() + rng.unit() + rng.unit() - 2.0) * 1.7;
      put(test.dtype, to + i * size_, value);
    }
  }
  const std::byte* of_step(int step) const {
    const std::size_t window = static_cast<std::size_t>(step) * 7919 % (kWindows / 64) * 64;
    return lines_.front().bytes + window * size_;
  }

 private:
  static constexpr std::size_t kWindows = std::size_t{1} << 16;
  static void put(DataType dtype, std::byte* to, double value) {
    const auto store = [&](auto element) { std::memcpy(to, &element, sizeof(element)); };
    switch (dtype) {
      case DataType::kFloat16:
        return store(lightcc::float_to_half(static_cast<float>(value)));
      case DataType::kBfloat16:
        return store(lightcc::float_to_bfloat16(static_cast<float>(value)));
      case DataType::kFloat64:
        return store(value);
      default:
        return store(static_cast<float>(value));
    }
  }
  std::size_t size_;
  std::vector<Line> lines_;
};

// ---- What the same bytes cost without any work.

[[gnu::noinline]] void triad(float* __restrict c,
                             const float* __restrict a,
                             const float* __restrict b,
                             std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    c[i] = a[i] + b[i];
  }
}

[[gnu::noinline]] void streaming_triad(float* c,
                                       const float* a,
                                       const float* b,
                                       std::size_t count) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < count; i += 16) {
    for (std::size_t u = 0; u < 16; u += 4) {
      _mm_stream_ps(c + i + u, _mm_add_ps(_mm_load_ps(a + i + u), _mm_load_ps(b + i + u)));
    }
  }
  _mm_sfence();
#else
  triad(c, a, b, count);
#endif
}

/// Rates of the two, in bytes of the three streams per second.
struct Bound {
  double plain = 0.0;
  double streaming = 0.0;
};

// ---- The contenders.

struct Compressor {
  Compressor(const Case& test, SimdLevel with_level)
      : level(with_level), state(test.dtype, test.numel) {}
  SimdLevel level;
  TopkState state;
  double best_s = 1e9;
  int timed = 0;
  int steps = 0;
  double counts = 0.0;  ///< Sum over timed steps, in units of k.
};

bool step(const Case& test,
          const Gradients& gradients,
          Compressor& it,
          std::vector<std::byte>& out) {
  const std::size_t k = lightcc::topk_k(test.numel, kRatio);
  const lightcc::TopkRequest request{.k = k,
                                     .capacity = lightcc::topk_capacity(k, test.numel),
                                     .fp16 = test.fp16,
                                     .level = it.level};
  const auto begin = Clock::now();
  const auto outcome = it.state.compress(gradients.of_step(it.steps), 1.0, request, out);
  it.state.commit();
  const double took = seconds_since(begin);
  if (!outcome.ok() || outcome->non_finite) {
    return false;
  }
  ++it.steps;
  if (it.steps > kSettlingSteps && outcome->passes == 1) {
    it.best_s = std::min(it.best_s, took);
    it.counts += static_cast<double>(outcome->count) / static_cast<double>(k);
    ++it.timed;
  }
  const lightcc::TopkFormat format{.dtype = test.dtype, .fp16 = test.fp16};
  return lightcc::parse_list(std::span(out).first(outcome->bytes), test.numel, format).ok();
}

double lane_bytes(const Case& test) {
  return test.dtype == DataType::kFloat64 ? 8.0 : 4.0;
}

double pass_bytes(const Case& test) {
  return (2.0 * lane_bytes(test) + static_cast<double>(lightcc::element_size(test.dtype))) *
         static_cast<double>(test.numel);
}

void measure_bound(Bound& bound, std::size_t numel, std::vector<Line> (&arrays)[3]) {
  auto* a = reinterpret_cast<float*>(arrays[0].data());
  auto* b = reinterpret_cast<float*>(arrays[1].data());
  auto* c = reinterpret_cast<float*>(arrays[2].data());
  const double bytes = 12.0 * static_cast<double>(numel);
  auto begin = Clock::now();
  triad(c, a, b, numel);
  bound.plain = std::max(bound.plain, bytes / seconds_since(begin));
  begin = Clock::now();
  streaming_triad(c, a, b, numel);
  bound.streaming = std::max(bound.streaming, bytes / seconds_since(begin));
}

/// What a step does besides to tell how much it kept back; `lanes` are as a residual.
bool measure_statistic(const Case& test,
                       const Gradients& gradients,
                       int step,
                       const std::vector<Line>& lanes,
                       double& best_s) {
  if (test.dtype == DataType::kFloat64) {
    return true;  // The lanes are float32.
  }
  const auto begin = Clock::now();
  const lightcc::StepEnergy energy = lightcc::measure_energy(test.dtype,
                                                             gradients.of_step(step),
                                                             lanes.front().bytes,
                                                             test.numel,
                                                             static_cast<std::uint64_t>(step));
  best_s = std::min(best_s, seconds_since(begin));
  return energy.input > 0.0;
}

bool measure(const Case& test) {
  const std::size_t k = lightcc::topk_k(test.numel, kRatio);
  const lightcc::TopkFormat format{.dtype = test.dtype, .fp16 = test.fp16};
  std::vector<std::byte> out(
      lightcc::max_list_bytes(test.numel, lightcc::topk_capacity(k, test.numel), format));
  const Gradients gradients(test);
  std::vector<Compressor> compressors;
  for (const SimdLevel level : {SimdLevel::kPlain, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= lightcc::detect_simd_level()) {
      compressors.emplace_back(test, level);
    }
  }
  bool right = true;
  for (int i = 0; i < kSettlingSteps; ++i) {
    for (Compressor& it : compressors) {
      right = step(test, gradients, it, out) && right;
    }
  }
  std::vector<Line> arrays[3];
  for (auto& array : arrays) {
    array.resize(test.numel * sizeof(float) / sizeof(Line) + 1);
  }
  Bound bound;
  double statistic_s = 1e9;
  const int repeats =
      static_cast<int>(std::max<std::size_t>((std::size_t{1} << 23) / test.numel, 1));
  for (int round = 0; round < kRounds * repeats; ++round) {
    measure_bound(bound, test.numel, arrays);
    right = measure_statistic(test, gradients, round, arrays[0], statistic_s) && right;
    for (Compressor& it : compressors) {
      right = step(test, gradients, it, out) && right;
    }
  }
  const double best_bound = std::max(bound.plain, bound.streaming);
  std::printf(
      "%s%s, %zu Mi elements, density %.3g; the bound: triad %.1f, past the caches %.1f GB/s\n",
      lightcc::data_type_name(test.dtype),
      test.fp16 ? " as fp16" : "",
      test.numel >> 20,
      kRatio,
      bound.plain * 1e-9,
      bound.streaming * 1e-9);
  for (const Compressor& it : compressors) {
    const double rate = pass_bytes(test) / it.best_s;
    std::printf(
        "  %-7s %8.2f ms  %5.1f GB/s  %3.0f%% of the bound  (%d of %d steps in one pass, "
        "count/k %.2f)\n",
        lightcc::simd_level_name(it.level),
        it.best_s * 1e3,
        rate * 1e-9,
        100.0 * rate / best_bound,
        it.timed,
        it.steps - kSettlingSteps,
        it.counts / std::max(it.timed, 1));
  }
  if (test.dtype != DataType::kFloat64) {
    std::printf("  of which the statistic of what is kept back takes %.3f ms\n", statistic_s * 1e3);
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  Case test;
  std::vector<std::size_t> sizes;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    if (text == "fp16") {
      test.fp16 = true;
    } else if (const std::size_t mebi = std::strtoul(argv[i], nullptr, 10); mebi > 0) {
      sizes.push_back(mebi << 20);
    } else {
      for (const DataType dtype : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
        test.dtype = text == lightcc::data_type_name(dtype) ? dtype : test.dtype;
      }
    }
  }
  if (sizes.empty()) {
    sizes = {std::size_t{1} << 20, std::size_t{16} << 20, std::size_t{128} << 20};
  }
  bool right = true;
  for (const std::size_t numel : sizes) {
    test.numel = numel;
    right = measure(test) && right;
  }
  std::puts(right ? "all lists are valid" : "WRONG");
  return right ? 0 : 1;
}
