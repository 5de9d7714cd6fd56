// A step of top-k compression, beside the CPU's on the same shard and residual.
//
// The exact step comes first. What it selects tells the threshold that the steady state is measured
// with.
#include "lightcc_cuda/kernels/topk.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/residual/saved_shard.hpp"
#include "lightcc/compression/topk/list_layout.hpp"
#include "lightcc/compression/topk/topk_list.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/measure/bench.hpp"
#include "lightcc_cuda/measure/topk_trial.hpp"
#include "lightcc_cuda/staging/pinned_pool.hpp"
#include "lightcc_cuda/staging/topk_site.hpp"

namespace lightcc::cuda {
namespace {

constexpr unsigned char kSpoilt = 0xA5;
// For float32: shard and residual are read, the next residual is written.
constexpr std::uint64_t kPassBytes = 12;
// The exact path also reads 8 bytes for each of three digits of the threshold.
constexpr std::uint64_t kExactBytes = 36;

TopkRequest measured_request(std::size_t elements) {
  const std::size_t k = topk_k(elements, kMeasuredRatio);
  return {.k = k, .capacity = topk_capacity(k, elements)};
}

std::size_t list_room(std::size_t elements, const TopkRequest& request) {
  return lightcc::detail::ListLayout(tiles_of(elements, kTopkWireBlock), request.capacity, {}).end;
}

/// What a step makes of a shard and its state.
struct StepResult {
  TopkOutcome outcome;
  std::vector<std::byte> list;
  Bytes saved;  ///< Behind the step.

  std::uint64_t differences(const StepResult& other) const {
    const auto listed = [](const StepResult& result) {
      return std::span(result.list).first(result.outcome.bytes);
    };
    return count_differences(listed(*this), listed(other)) + count_differences(saved, other.saved) +
           ((outcome.passes == 1) == (other.outcome.passes == 1) ? 0 : 1);
  }
};

/// A shard and its residual.
class MeasuredShard {
 public:
  explicit MeasuredShard(std::size_t elements) {
    Rng rng(elements);
    values_ = made_up_values(elements, rng);
    residual_ = made_up_values(elements, rng);
  }

  std::size_t elements() const { return values_.size(); }
  std::span<const std::byte> values() const { return std::as_bytes(std::span(values_)); }
  /// Between two steps. `threshold`: 0 where it is not known.
  Bytes saved(double threshold, std::size_t k) const {
    Bytes bytes;
    write_saved_shard(
        {.dtype = DataType::kFloat32,
         .numel = elements(),
         .step = 1,
         .forecast = {.threshold = threshold, .ideal = threshold, .k = threshold > 0.0 ? k : 0},
         .residual = std::as_bytes(std::span(residual_)),
         .velocity = {},
         .has_velocity = false},
        bytes);
    return bytes;
  }
  Result<StepResult> step_on_cpu(const Bytes& saved) const {
    StepResult result;
    const TopkRequest request = measured_request(elements());
    result.list.resize(list_room(elements(), request));
    LIGHTCC_ASSIGN_OR_RETURN(const std::unique_ptr<ShardResidual> state,
                             host_kernels().load_state(saved));
    const TopkStep step{.state = state.get(),
                        .shard = values().data(),
                        .request = request,
                        .list = result.list,
                        .outcome = &result.outcome};
    LIGHTCC_RETURN_IF_ERROR(host_kernels().compress({&step, 1}).status());
    state->commit();
    LIGHTCC_RETURN_IF_ERROR(state->save(result.saved));
    return result;
  }

 private:
  std::vector<float> values_;
  std::vector<float> residual_;
};

/// The smallest magnitude of a list.
Result<double> threshold_of(const StepResult& result, std::size_t elements) {
  LIGHTCC_ASSIGN_OR_RETURN(
      const TopkListView list,
      parse_list(std::span(result.list).first(result.outcome.bytes), elements, {}));
  double smallest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < list.count; ++i) {
    float value = 0.0F;
    std::memcpy(&value, list.values + i * sizeof(value), sizeof(value));
    smallest = std::min(smallest, std::abs(static_cast<double>(value)));
  }
  return smallest;
}

/// Steps of one shard from one state.
class TopkMeasurement {
 public:
  TopkMeasurement(Bench& bench, TopkSite& site, Address values, std::size_t elements)
      : bench_(bench), site_(site), values_(values), elements_(elements) {}
  TopkMeasurement(const TopkMeasurement&) = delete;
  TopkMeasurement& operator=(const TopkMeasurement&) = delete;
  ~TopkMeasurement() { const Draining draining(bench_); }

  Result<Measured> step(const std::string& name,
                        std::uint64_t bytes_each,
                        const Bytes& saved,
                        const StepResult& expected) {
    LIGHTCC_ASSIGN_OR_RETURN(const std::unique_ptr<TopkTrial> trial, begin(saved));
    const Draining draining(bench_);
    LIGHTCC_ASSIGN_OR_RETURN(
        Measured measured,
        bench_.measure(name, elements_, bytes_each * elements_, [&](std::size_t) {
          return trial->launch_step();
        }));
    LIGHTCC_ASSIGN_OR_RETURN(measured.errors, end(*trial, expected));
    return measured;
  }

  Result<Measured> pass(const std::string& name, const Bytes& saved, const StepResult& expected) {
    LIGHTCC_ASSIGN_OR_RETURN(const std::unique_ptr<TopkTrial> trial, begin(saved));
    const Draining draining(bench_);
    LIGHTCC_RETURN_IF_ERROR(trial->prepare_passes(bench_.effort().launches));
    LIGHTCC_ASSIGN_OR_RETURN(Measured measured,
                             bench_.measure(
                                 name,
                                 elements_,
                                 kPassBytes * elements_,
                                 [&](std::size_t index) { return trial->launch_pass(index); },
                                 [&] { return trial->begin_passes(); }));
    LIGHTCC_RETURN_IF_ERROR(trial->end_pass(0));
    LIGHTCC_ASSIGN_OR_RETURN(measured.errors, end(*trial, expected));
    return measured;
  }

 private:
  Result<std::unique_ptr<TopkTrial>> begin(const Bytes& saved) {
    shard_ = std::make_shared<TopkShard>();
    shard_->numel = elements_;
    LIGHTCC_ASSIGN_OR_RETURN(const SavedShard parsed, parse_saved_shard(saved));
    LIGHTCC_RETURN_IF_ERROR(site_.load_shard(*shard_, parsed, bench_.stream()));
    const TopkRequest request = measured_request(elements_);
    result_ = {};
    result_.list.resize(list_room(elements_, request));
    LIGHTCC_ASSIGN_OR_RETURN(
        std::unique_ptr<TopkTrial> trial,
        TopkTrial::make(
            site_,
            {.shard = shard_,
             .input = reinterpret_cast<const std::byte*>(values_),  // NOLINT: of the GPU
             .request = request,
             .list = result_.list,
             .outcome = &result_.outcome},
            bench_.stream()));
    LIGHTCC_RETURN_IF_ERROR(trial->spoil(kSpoilt));
    return trial;
  }

  /// Bytes that are not as expected.
  Result<std::uint64_t> end(TopkTrial& trial, const StepResult& expected) {
    LIGHTCC_RETURN_IF_ERROR(trial.finish());
    LIGHTCC_RETURN_IF_ERROR(site_.save_shard(*shard_, result_.saved, bench_.stream()));
    return result_.differences(expected);
  }

  Bench& bench_;
  TopkSite& site_;
  Address values_;
  std::size_t elements_;
  std::shared_ptr<TopkShard> shard_;
  StepResult result_;
};

}  // namespace

Measurements measure_topk(Bench& bench, std::size_t elements) {
  const MeasuredShard shard(elements);
  PinnedPool pinned(bench.driver());
  TopkSite site(bench.driver(), pinned);
  LIGHTCC_ASSIGN_OR_RETURN(const DeviceMemory values,
                           allocate_device_memory(bench.driver(), shard.values().size()));
  LIGHTCC_RETURN_IF_ERROR(bench.write(values.get(), shard.values()));
  TopkMeasurement measurement(bench, site, values.get(), elements);
  double threshold = 0.0;
  std::vector<Measured> all;
  {
    const Bytes saved = shard.saved(0.0, 0);
    LIGHTCC_ASSIGN_OR_RETURN(const StepResult expected, shard.step_on_cpu(saved));
    LIGHTCC_ASSIGN_OR_RETURN(threshold, threshold_of(expected, elements));
    LIGHTCC_ASSIGN_OR_RETURN(Measured exact,
                             measurement.step("exact step", kExactBytes, saved, expected));
    all.push_back(std::move(exact));
  }
  const Bytes saved = shard.saved(threshold, measured_request(elements).k);
  LIGHTCC_ASSIGN_OR_RETURN(const StepResult expected, shard.step_on_cpu(saved));
  if (expected.outcome.passes != 1) {
    return make_error(ErrorCode::kInternal,
                      "%zu elements are no steady state of top-k compression: %d passes",
                      elements,
                      expected.outcome.passes);
  }
  LIGHTCC_ASSIGN_OR_RETURN(Measured pass, measurement.pass("select pass", saved, expected));
  LIGHTCC_ASSIGN_OR_RETURN(Measured step,
                           measurement.step("select step", kPassBytes, saved, expected));
  all.push_back(std::move(pass));
  all.push_back(std::move(step));
  return all;
}

}  // namespace lightcc::cuda
