// How long a GPU takes for what a stream is given, by its own clock.
//
// A GPU may be faster than the host launches. So the stream first copies something to and fro,
// until all launches are queued behind that. If they were not when the first one began, they are
// made again behind more copies.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/event.hpp"

namespace lightcc::cuda {

/// Between two events that have happened. Errors: kSystem.
Result<double> seconds_between(const Driver& driver, const Event& first, const Event& last);

struct Reading {
  double seconds = 0.0;
  bool has_gaps = false;  ///< Copies did not suffice.
};

/// Thread: one, with the context current. The stream is for it alone, and outlives it.
class Stopwatch {
 public:
  /// `copied_bytes`: at a time. A GPU takes longer for so many than their call takes the host.
  /// Errors: kSystem.
  static Result<Stopwatch> make(const Driver& driver,
                                const Stream& stream,
                                std::size_t copied_bytes = std::size_t{32} << 20);

  /// The time of all that `enqueue` gives the stream, behind what `prepare` gives it. Both may be
  /// called several times, and are to do the same each time. Errors: theirs; kSystem. Blocks: until
  /// it is done.
  Result<Reading> time(const std::function<Status()>& prepare,
                       const std::function<Status()>& enqueue);

 private:
  Result<Reading> try_time(const std::function<Status()>& prepare,
                           const std::function<Status()>& enqueue);

  Stopwatch(const Driver& driver,
            const Stream& stream,
            Event first,
            Event last,
            DeviceMemory copied,
            std::size_t copied_bytes)
      : driver_(&driver),
        stream_(&stream),
        first_(std::move(first)),
        last_(std::move(last)),
        copied_(std::move(copied)),
        copied_bytes_(copied_bytes) {}

  const Driver* driver_;
  const Stream* stream_;
  Event first_;
  Event last_;
  DeviceMemory copied_;  // Twice as many.
  std::size_t copied_bytes_;
  std::size_t copies_ = 1;  // As many as sufficed before.
};

}  // namespace lightcc::cuda
