// Measurements of the kernels on one GPU, by the driver's events. Results are compared with the
// CPU's, bit for bit. Not yet run on hardware.
//
// A figure is of launches that follow one another on a stream: they are all queued before the first
// one begins (stopwatch.hpp), so it holds no pause of the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc::cuda {

struct MeasureEffort {
  std::size_t rounds = 5;     ///< Figures of each measurement, from 1.
  std::size_t launches = 20;  ///< In each of them, 1 .. kMaxMeasuredLaunches.
};
/// Limit for steps with many launches each. More would not fit into a driver's queue.
inline constexpr std::size_t kMaxMeasuredLaunches = 32;

struct Measured {
  std::string name;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;      ///< That one must read and write in the GPU's memory; 0: few.
  std::vector<double> seconds;  ///< Time of one launch, in each round.
  std::uint64_t errors = 0;     ///< Bytes of results that are not the CPU's.
  bool fits_cache = false;      ///< So many bytes stay in the GPU's last cache.
  bool has_gaps = false;        ///< The host has not kept the GPU busy.
};

/// What there is to measure, and of what:
///   loading    no sizes: all modules are loaded, by the host's clock: twice as PTX, which a driver
///              compiles unless it finds that in its cache, and as users have them
///   launches   no sizes: what a launch costs that does next to nothing
///   launcher   no sizes: a job of a Launcher, from its submission to the end of a kernel that does
///              next to nothing, and from there to who waits
///   copies     elements: a copy of float32, by lightcc_copy_4 and by the driver
///   buckets    elements of each tensor: float32 is packed into a bucket, and unpacked
///   topk       elements: a step of top-k compression of float32 to 1%, with a known threshold and
///              without; and its pass over the elements alone
///   merge      elements: the sum of 8 lists with 1% each
/// Takes a context of the GPU, and memory there and on the host, and gives them back. Errors:
/// kInvalidArgument, there is no such GPU, measurement, size or effort; kUnimplemented, the kernels
/// cannot run on it; kSystem, a call failed, as where there is no memory; kInternal. Blocks: for
/// seconds.
LIGHTCC_EXPORT Result<std::vector<Measured>> measure_gpu(int index,
                                                         const std::string& what,
                                                         std::span<const std::size_t> sizes,
                                                         const MeasureEffort& effort,
                                                         const Clock& clock = Clock::system());

}  // namespace lightcc::cuda
