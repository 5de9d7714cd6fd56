// What all measurements of one GPU have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/rng.hpp"
#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/measure/measure.hpp"
#include "lightcc_cuda/measure/stopwatch.hpp"

namespace lightcc::cuda {

/// The share of elements that top-k sends when it is measured.
inline constexpr double kMeasuredRatio = 0.01;

/// Thread: one, with the context current. Errors of all methods: kSystem.
class Bench {
 public:
  /// All of that outlives it.
  Bench(const Driver& driver,
        const Stream& stream,
        const KernelTable& kernels,
        Stopwatch& stopwatch,
        const MeasureEffort& effort,
        const Clock& clock,
        std::size_t cache_bytes)
      : driver_(driver),
        stream_(stream),
        kernels_(kernels),
        stopwatch_(stopwatch),
        effort_(effort),
        clock_(clock),
        cache_bytes_(cache_bytes) {}

  const Driver& driver() const { return driver_; }
  StreamHandle* stream() const { return stream_.get(); }
  const KernelTable& kernels() const { return kernels_; }
  const MeasureEffort& effort() const { return effort_; }
  const Clock& clock() const { return clock_; }

  /// The times of `enqueue(i)`, which makes the i-th of equal launches. `prepare` is called before
  /// those of a round, and is not timed. Both are called more often than there are rounds.
  Result<Measured> measure(
      const std::string& name,
      std::uint64_t elements,
      std::uint64_t bytes,
      const std::function<Status(std::size_t)>& enqueue,
      const std::function<Status()>& prepare = [] { return Status(); });
  Status write(Address to, std::span<const std::byte> bytes) const;
  /// What no result is made of.
  Status spoil(Address to, std::size_t bytes) const;
  /// How many bytes at `from` are not as expected.
  Result<std::uint64_t> differences(Address from, std::span<const std::byte> expected) const;
  Status wait() const { return stream_.wait(); }

 private:
  const Driver& driver_;
  const Stream& stream_;
  const KernelTable& kernels_;
  Stopwatch& stopwatch_;
  MeasureEffort effort_;
  const Clock& clock_;
  std::size_t cache_bytes_;
};

/// Has the stream done all when this goes, for memory that was made before, and is freed after.
class Draining {
 public:
  explicit Draining(const Bench& bench) : bench_(bench) {}
  Draining(const Draining&) = delete;
  Draining& operator=(const Draining&) = delete;
  /// A failure was or will be told by others.
  ~Draining() { static_cast<void>(bench_.wait()); }

 private:
  const Bench& bench_;
};

/// Like gradients: around zero, small ones more often than large ones.
std::vector<float> made_up_values(std::size_t count, Rng& rng);
/// How many bytes differ; one of two that only one has does.
std::uint64_t count_differences(std::span<const std::byte> a, std::span<const std::byte> b);

using Measurements = Result<std::vector<Measured>>;
Measurements measure_loading(const Driver& driver, const Clock& clock);
Measurements measure_launches(Bench& bench);
/// `device`: the GPU's number.
Measurements measure_launcher(const Bench& bench, int device);
Measurements measure_copies(Bench& bench, std::size_t elements);
Measurements measure_buckets(Bench& bench, std::span<const std::size_t> sizes);
Measurements measure_topk(Bench& bench, std::size_t elements);
Measurements measure_merge(Bench& bench, std::size_t elements);

}  // namespace lightcc::cuda
