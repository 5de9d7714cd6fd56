#include "lightcc_cuda/measure/measure.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "lightcc_cuda/driver/gpus.hpp"
#include "lightcc_cuda/kernels/topk.hpp"
#include "lightcc_cuda/measure/bench.hpp"

namespace lightcc::cuda {
namespace {

enum class Sizes : std::uint8_t { kNone, kOne, kSeveral };

/// Something to measure. What needs no Bench has a function of its own.
struct Subject {
  std::string_view name;
  Sizes sizes;
  Measurements (*run)(Bench& bench, std::span<const std::size_t> sizes, int device);
};

constexpr std::string_view kLoading = "loading";
constexpr std::array kSubjects{
    Subject{kLoading, Sizes::kNone, nullptr},
    Subject{"launches",
            Sizes::kNone,
            [](Bench& bench, std::span<const std::size_t> /*sizes*/, int /*device*/) {
              return measure_launches(bench);
            }},
    Subject{"launcher",
            Sizes::kNone,
            [](Bench& bench, std::span<const std::size_t> /*sizes*/, int device) {
              return measure_launcher(bench, device);
            }},
    Subject{"copies",
            Sizes::kOne,
            [](Bench& bench, std::span<const std::size_t> sizes, int /*device*/) {
              return measure_copies(bench, sizes.front());
            }},
    Subject{"buckets",
            Sizes::kSeveral,
            [](Bench& bench, std::span<const std::size_t> sizes, int /*device*/) {
              return measure_buckets(bench, sizes);
            }},
    Subject{"topk",
            Sizes::kOne,
            [](Bench& bench, std::span<const std::size_t> sizes, int /*device*/) {
              return measure_topk(bench, sizes.front());
            }},
    Subject{"merge",
            Sizes::kOne,
            [](Bench& bench, std::span<const std::size_t> sizes, int /*device*/) {
              return measure_merge(bench, sizes.front());
            }},
};

Status check_sizes(const Subject& subject, std::span<const std::size_t> sizes) {
  const bool are_as_many = subject.sizes == Sizes::kSeveral
                               ? !sizes.empty()
                               : sizes.size() == (subject.sizes == Sizes::kOne ? 1U : 0U);
  const bool are_allowed = std::ranges::all_of(
      sizes, [](std::size_t size) { return size >= 1 && size <= kMaxTopkElements; });
  if (are_as_many && are_allowed) {
    return {};
  }
  const std::string allowed = subject.sizes == Sizes::kNone  ? "no sizes"
                              : subject.sizes == Sizes::kOne ? "one size"
                                                             : "sizes";
  const std::string range = subject.sizes == Sizes::kNone
                                ? ""
                                : ", from 1 to " + std::to_string(kMaxTopkElements) + " elements";
  return {ErrorCode::kInvalidArgument,
          "'" + std::string(subject.name) + "' is measured with " + allowed + range};
}

Result<const Subject*> find_subject(const std::string& what) {
  const auto* const found = std::ranges::find(kSubjects, std::string_view(what), &Subject::name);
  if (found != kSubjects.end()) {
    return found;
  }
  std::string known;
  for (const Subject& subject : kSubjects) {
    known += (known.empty() ? "" : ", ") + std::string(subject.name);
  }
  return Status(ErrorCode::kInvalidArgument,
                "'" + what + "' cannot be measured on a GPU; there are " + known);
}

Status check_effort(const MeasureEffort& effort) {
  if (effort.rounds >= 1 && effort.launches >= 1 && effort.launches <= kMaxMeasuredLaunches) {
    return {};
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "measurements take 1 round or more, of 1 to %zu launches, and not %zu of %zu",
                    kMaxMeasuredLaunches,
                    effort.rounds,
                    effort.launches);
}

Status check_gpu(int index) {
  LIGHTCC_ASSIGN_OR_RETURN(const Gpus gpus, find_gpus());
  const std::size_t count = gpus.list.size();
  if (index < 0 || static_cast<std::size_t>(index) >= count) {
    return make_error(ErrorCode::kInvalidArgument,
                      "there is no GPU %d: this process has %zu, numbered from 0",
                      index,
                      count);
  }
  const std::string& objection = gpus.list[static_cast<std::size_t>(index)].objection;
  return objection.empty() ? Status() : Status(ErrorCode::kUnimplemented, objection);
}

Measurements measure_subject(const Driver& driver,
                             int index,
                             const Subject& subject,
                             std::span<const std::size_t> sizes,
                             const MeasureEffort& effort,
                             const Clock& clock) {
  Device device = 0;
  int cache_bytes = 0;
  LIGHTCC_RETURN_IF_ERROR(driver.check(driver.call().device(&device, index), "cuDeviceGet"));
  LIGHTCC_RETURN_IF_ERROR(driver.check(
      driver.call().device_attribute(&cache_bytes, kCacheBytes, device), "cuDeviceGetAttribute"));
  LIGHTCC_ASSIGN_OR_RETURN(const KernelTable kernels, KernelTable::load(driver));
  LIGHTCC_ASSIGN_OR_RETURN(const Stream stream, Stream::create(driver));
  LIGHTCC_ASSIGN_OR_RETURN(Stopwatch stopwatch, Stopwatch::make(driver, stream));
  Bench bench(driver,
              stream,
              kernels,
              stopwatch,
              effort,
              clock,
              static_cast<std::size_t>(std::max(cache_bytes, 0)));
  const Draining draining(bench);
  return subject.run(bench, sizes, index);
}

}  // namespace

Result<std::vector<Measured>> measure_gpu(int index,
                                          const std::string& what,
                                          std::span<const std::size_t> sizes,
                                          const MeasureEffort& effort,
                                          const Clock& clock) {
  LIGHTCC_ASSIGN_OR_RETURN(const Subject* const subject, find_subject(what));
  LIGHTCC_RETURN_IF_ERROR(check_sizes(*subject, sizes));
  LIGHTCC_RETURN_IF_ERROR(check_effort(effort));
  LIGHTCC_RETURN_IF_ERROR(check_gpu(index));
  LIGHTCC_ASSIGN_OR_RETURN(const Driver driver, Driver::open());
  LIGHTCC_ASSIGN_OR_RETURN(const Context context, Context::retain(driver, index));
  const CurrentContext current(context);
  LIGHTCC_RETURN_IF_ERROR(current.status());
  if (subject->name == kLoading) {
    return measure_loading(driver, clock);
  }
  return measure_subject(driver, index, *subject, sizes, effort, clock);
}

}  // namespace lightcc::cuda
