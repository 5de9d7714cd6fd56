// How fast ShmGroup is: forked, pinned processes sum float32 in place and check the result.
//
//   shm_allreduce_bench [ranks] [chunk KiB] [depth] [MiB,MiB,...] [iterations] [out]
//
// 0 chooses the default; "out" writes the results to other tensors.
//
// Prints, for each size, the median and least time of the slowest rank and of a plain memcpy of the
// same size in the same process, and at the end the time of a 4 KiB allreduce (half of it is one
// way of a flag). Ranks poll: a pause, and after 2000 of them (or at once, where there are more
// ranks than processors) sched_yield.

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/collectives/shm_group.hpp"
#include "lightcc/transport/shm/doorbell.hpp"
#include "lightcc/transport/shm/segment.hpp"

namespace {

using lightcc::Doorbell;
using lightcc::Group;
using lightcc::Progress;
using lightcc::Reduction;
using lightcc::ShmGroupOptions;
using lightcc::ShmSegment;
using lightcc::SleepWord;
using lightcc::TensorSpan;
using lightcc::Work;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMostIterations = 20000;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "shm_allreduce_bench: %s\n", what);
  std::_Exit(1);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int pauses = 2000;  // Before a rank that finds nothing to do yields.

void run(std::unique_ptr<Work> work) {
  for (int idle = 0;;) {
    auto progress = work->advance();
    if (!progress.ok()) {
      fail(progress.status().message().c_str());
    }
    if (*progress == Progress::kDone) {
      return;
    }
    if (*progress == Progress::kMoved) {
      idle = 0;
    } else if (++idle > pauses) {
      sched_yield();
      idle = 0;
    } else {
      relax();
    }
  }
}

struct Rank {
  int rank = 0;
  int size = 1;
  bool in_place = true;
  Group* group = nullptr;
  double* times = nullptr;  ///< [size][kMostIterations], shared.
};

double* times_of(const Rank& me, int rank) {
  return me.times + static_cast<std::size_t>(rank) * kMostIterations;
}

/// Of each iteration the slowest rank, sorted.
std::vector<double> slowest(const Rank& me, std::size_t iterations) {
  std::vector<double> worst(iterations, 0.0);
  for (int rank = 0; rank < me.size; ++rank) {
    for (std::size_t i = 0; i < iterations; ++i) {
      worst[i] = std::max(worst[i], times_of(me, rank)[i]);
    }
  }
  std::sort(worst.begin(), worst.end());
  return worst;
}

std::vector<double> measure(const Rank& me,
                            std::span<float> x,
                            std::span<float> y,
                            std::size_t iterations) {
  const auto mine = static_cast<float>(me.rank + 1);
  const auto sum = static_cast<float>(me.size * (me.size + 1) / 2);
  const TensorSpan span{std::as_bytes(x).data(), std::as_writable_bytes(y).data(), x.size()};
  std::fill(x.begin(), x.end(), mine);
  for (std::size_t i = 0; i < iterations + 2; ++i) {
    run(me.group->barrier());
    const double start = seconds();
    run(me.group->allreduce({span}, Reduction{}));
    const double end = seconds();
    if (i == 0) {
      if (!std::all_of(y.begin(), y.end(), [&](float value) { return value == sum; })) {
        fail("a wrong sum");
      }
      std::fill(x.begin(), x.end(), 0.0F);  // So that it does not grow.
    } else if (i >= 2) {
      times_of(me, me.rank)[i - 2] = end - start;
    }
  }
  run(me.group->barrier());
  std::vector<double> result = slowest(me, iterations);
  run(me.group->barrier());
  return result;
}

double measure_memcpy(std::span<float> x) {
  std::vector<double> times;
  const std::size_t half = x.size() / 2;
  for (int i = 0; i < 7; ++i) {
    const double start = seconds();
    std::memcpy(x.data(), x.data() + half, half * sizeof(float));
    times.push_back(2 * (seconds() - start));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

float* allocate(std::size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes + 2 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fail("out of memory");
  }
  (void)madvise(memory, bytes + 2 * kMiB, MADV_HUGEPAGE);
  const auto address = (reinterpret_cast<std::uintptr_t>(memory) + 2 * kMiB - 1) / (2 * kMiB);
  return reinterpret_cast<float*>(address * 2 * kMiB);
}

void pin(int rank) {
  const long cpus = std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(rank % cpus), &set);
  (void)sched_setaffinity(0, sizeof set, &set);
}

void bench(const Rank& me, const std::vector<std::size_t>& sizes, std::size_t iterations) {
  const std::size_t maximum = *std::max_element(sizes.begin(), sizes.end());
  float* const memory = allocate(maximum);
  float* const other = me.in_place ? memory : allocate(maximum);
  for (const std::size_t bytes : sizes) {
    const std::span<float> x(memory, bytes / sizeof(float));
    const std::size_t rounds =
        iterations != 0 ? iterations
                        : std::clamp<std::size_t>((std::size_t{2048} * kMiB) / bytes, 11, 2000);
    const std::vector<double> times = measure(me, x, {other, x.size()}, rounds);
    const double copy = measure_memcpy(x);
    if (me.rank == 0) {
      const double median = times[times.size() / 2];
      std::printf("%9zu KiB  median %9.3f us  least %9.3f us  %6.2f GB/s  memcpy %9.3f us\n",
                  bytes >> 10,
                  median * 1e6,
                  times[0] * 1e6,
                  static_cast<double>(bytes) / median / 1e9,
                  copy * 1e6);
      std::fflush(stdout);
    }
    run(me.group->barrier());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int index, long fallback) {
    return argc > index ? std::strtol(argv[index], nullptr, 10) : fallback;
  };
  const int size = static_cast<int>(std::clamp(number(1, 2), 1L, 64L));
  ShmGroupOptions options = lightcc::default_shm_options(size);
  options.simd = lightcc::detect_simd_level();
  if (const long chunk = number(2, 0); chunk > 0) {
    options.chunk_bytes = static_cast<std::size_t>(chunk) << 10;
  }
  if (const long depth = number(3, 0); depth > 0) {
    options.depth = static_cast<int>(depth);
  }
  std::vector<std::size_t> sizes;
  for (const char* text = argc > 4 ? argv[4] : "1,16,64,256"; *text != '\0';) {
    char* end = nullptr;
    sizes.push_back(static_cast<std::size_t>(std::strtod(text, &end) * static_cast<double>(kMiB)));
    text = *end == ',' ? end + 1 : end;
    if (sizes.back() < 4 || (*end != ',' && *end != '\0')) {
      fail("sizes are numbers of MiB with commas between them");
    }
  }
  sizes.push_back(4096);
  const bool in_place = argc <= 6;
  const auto iterations =
      static_cast<std::size_t>(std::clamp(number(5, 0), 0L, static_cast<long>(kMostIterations)));

  const std::size_t group_bytes = lightcc::shm_group_bytes(size, options);
  auto segment = ShmSegment::create(group_bytes);
  const auto members = static_cast<std::size_t>(size);
  auto extra = ShmSegment::create(members * (sizeof(SleepWord) + kMostIterations * sizeof(double)));
  if (!segment.ok() || !extra.ok()) {
    fail(segment.ok() ? extra.status().message().c_str() : segment.status().message().c_str());
  }
  std::byte* const words = extra->memory().data();
  std::vector<Doorbell> bells;
  for (std::size_t rank = 0; rank < members; ++rank) {
    bells.emplace_back(reinterpret_cast<SleepWord*>(words) + rank, -1);
  }
  std::printf("%d ranks, %s, chunk %zu KiB, depth %d, %s\n",
              size,
              in_place ? "in place" : "to other tensors",
              options.chunk_bytes >> 10,
              options.depth,
              lightcc::simd_level_name(options.simd));
  std::fflush(stdout);
  for (int rank = 0; rank < size; ++rank) {
    if (fork() == 0) {
      pin(rank);
      pauses = size > sysconf(_SC_NPROCESSORS_ONLN) ? 0 : pauses;
      auto group = lightcc::make_shm_group(segment->memory(), rank, bells, options);
      Rank me{rank,
              size,
              in_place,
              group.get(),
              reinterpret_cast<double*>(words + members * sizeof(SleepWord))};
      bench(me, sizes, iterations);
      std::_Exit(0);
    }
  }
  int result = 0;
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) {
      result = 1;
    }
  }
  return result;
}
