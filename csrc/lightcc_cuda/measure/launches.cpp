// What it costs to have a GPU do something at all: to load the kernels, to launch one, and to hand
// a job to a launcher's thread.
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lightcc_cuda/driver/copy_launch.hpp"
#include "lightcc_cuda/driver/cubins.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/kernels/bucket.hpp"
#include "lightcc_cuda/measure/bench.hpp"
#include "lightcc_cuda/staging/launcher.hpp"

namespace lightcc::cuda {
namespace {

double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// One byte that is copied to another one.
class CopiedByte {
 public:
  static Result<CopiedByte> make(const Bench& bench) {
    LIGHTCC_ASSIGN_OR_RETURN(DeviceMemory memory, allocate_device_memory(bench.driver(), kBytes));
    const Draining draining(bench);
    LIGHTCC_RETURN_IF_ERROR(bench.spoil(memory.get(), kBytes));
    LIGHTCC_RETURN_IF_ERROR(bench.write(memory.get(), std::span(&kByte, 1)));
    return CopiedByte(std::move(memory));
  }

  Status launch_on(const Bench& bench, StreamHandle* stream) const {
    BucketArguments arguments{};
    arguments.rows[0] = {.tensor = reinterpret_cast<u8*>(memory_.get()), .first = 0};  // NOLINT
    arguments.bucket = reinterpret_cast<u8*>(target());                                // NOLINT
    arguments.total = 1;
    arguments.count = 1;
    return launch_copies(bench.driver(), bench.kernels(), 1, stream, arguments);
  }
  /// 1 where the byte was not copied. It is not there afterwards.
  Result<std::uint64_t> take_errors(const Bench& bench) const {
    LIGHTCC_ASSIGN_OR_RETURN(const std::uint64_t errors,
                             bench.differences(target(), std::span(&kByte, 1)));
    LIGHTCC_RETURN_IF_ERROR(bench.spoil(target(), 1));
    LIGHTCC_RETURN_IF_ERROR(bench.wait());
    return errors;
  }

 private:
  static constexpr std::size_t kBytes = 512;
  static constexpr std::byte kByte{0x3C};

  explicit CopiedByte(DeviceMemory memory) : memory_(std::move(memory)) {}
  Address target() const { return memory_.get() + kBytes / 2; }

  DeviceMemory memory_;
};

/// By the host's clock, of the calls alone.
Result<Measured> measure_calls(const Bench& bench, const CopiedByte& byte) {
  Measured measured{.name = "call to launch", .elements = 1, .seconds = {}};
  for (std::size_t round = 0; round < bench.effort().rounds; ++round) {
    const TimePoint begin = bench.clock().now();
    for (std::size_t i = 0; i < bench.effort().launches; ++i) {
      LIGHTCC_RETURN_IF_ERROR(byte.launch_on(bench, bench.stream()));
    }
    measured.seconds.push_back(seconds_of(bench.clock().now() - begin) /
                               static_cast<double>(bench.effort().launches));
    LIGHTCC_RETURN_IF_ERROR(bench.wait());
  }
  LIGHTCC_ASSIGN_OR_RETURN(measured.errors, byte.take_errors(bench));
  return measured;
}

/// A job of a launcher, and when it came how far.
struct TimedJob {
  TimePoint submitted;
  TimePoint kernel_done;  ///< As the launcher's thread sees it.
  TimePoint seen;         ///< By who waits.

  /// The job: a kernel, which is waited for as soon as may be. `event` is recorded behind it.
  Status run(const Bench& bench, const CopiedByte& byte, const Event& event, const GpuSite& gpu) {
    const Functions& call = bench.driver().call();
    LIGHTCC_RETURN_IF_ERROR(byte.launch_on(bench, gpu.stream.get()));
    LIGHTCC_RETURN_IF_ERROR(
        bench.driver().check(call.record_event(event.get(), gpu.stream.get()), "cuEventRecord"));
    Code code = kErrorNotReady;
    while (code == kErrorNotReady) {
      code = call.query_event(event.get());
    }
    kernel_done = bench.clock().now();
    return bench.driver().check(code, "cuEventQuery");
  }
};

Result<TimedJob> run_job(const Bench& bench,
                         const CopiedByte& byte,
                         const Event& event,
                         Launcher& launcher) {
  TimedJob timed;
  const auto job =
      std::make_shared<Job>([&](const GpuSite& gpu) { return timed.run(bench, byte, event, gpu); });
  timed.submitted = bench.clock().now();
  launcher.post(job);
  while (!job->is_done()) {
    std::this_thread::yield();
  }
  timed.seen = bench.clock().now();
  LIGHTCC_RETURN_IF_ERROR(job->status());
  return timed;
}

Result<Measured> measure_load(const Driver& driver,
                              const Clock& clock,
                              const std::string& name,
                              std::span<const Cubin> cubins) {
  const TimePoint begin = clock.now();
  LIGHTCC_ASSIGN_OR_RETURN(const KernelTable kernels, KernelTable::load(driver, cubins));
  const double seconds = seconds_of(clock.now() - begin);
  return Measured{.name = name,
                  .elements = kernels.size(),
                  .seconds = {seconds},
                  .errors = kernel_names().size() - kernels.size()};
}

}  // namespace

Measurements measure_loading(const Driver& driver, const Clock& clock) {
  LIGHTCC_ASSIGN_OR_RETURN(Measured first, measure_load(driver, clock, "compile kernels", {}));
  LIGHTCC_ASSIGN_OR_RETURN(Measured again, measure_load(driver, clock, "compile again", {}));
  LIGHTCC_ASSIGN_OR_RETURN(Measured usual,
                           measure_load(driver, clock, "load kernels", cubins_in_library()));
  return std::vector{std::move(first), std::move(again), std::move(usual)};
}

Measurements measure_launches(Bench& bench) {
  LIGHTCC_ASSIGN_OR_RETURN(const CopiedByte byte, CopiedByte::make(bench));
  const Draining draining(bench);
  LIGHTCC_ASSIGN_OR_RETURN(Measured large, bench.measure("launch", 1, 0, [&](std::size_t) {
    return byte.launch_on(bench, bench.stream());
  }));
  LIGHTCC_ASSIGN_OR_RETURN(large.errors, byte.take_errors(bench));
  LIGHTCC_ASSIGN_OR_RETURN(Measured calls, measure_calls(bench, byte));
  return std::vector{std::move(large), std::move(calls)};
}

Measurements measure_launcher(const Bench& bench, int device) {
  LIGHTCC_ASSIGN_OR_RETURN(const CopiedByte byte, CopiedByte::make(bench));
  LIGHTCC_ASSIGN_OR_RETURN(const Event event, make_event(bench.driver(), Timing::kKnown));
  const Draining draining(bench);
  Measured to_kernel{.name = "job to kernel end", .elements = 1, .seconds = {}};
  Measured to_host{.name = "kernel end to host", .elements = 1, .seconds = {}};
  Launcher launcher(kDriverFile, device);
  LIGHTCC_RETURN_IF_ERROR(launcher.run([](const GpuSite&) { return Status(); }));
  const std::size_t jobs = bench.effort().rounds * bench.effort().launches;
  for (std::size_t i = 0; i < jobs; ++i) {
    LIGHTCC_ASSIGN_OR_RETURN(const TimedJob timed, run_job(bench, byte, event, launcher));
    to_kernel.seconds.push_back(seconds_of(timed.kernel_done - timed.submitted));
    to_host.seconds.push_back(seconds_of(timed.seen - timed.kernel_done));
    LIGHTCC_ASSIGN_OR_RETURN(const std::uint64_t errors, byte.take_errors(bench));
    to_kernel.errors += errors;
  }
  return std::vector{std::move(to_kernel), std::move(to_host)};
}

}  // namespace lightcc::cuda
