// On a sampled step, the tensors of a bucket are all-reduced twice: dense into memory beside them,
// then compressed as on every step. Then both results are compared, element by element.
//
// Which steps. Every N-th all-reduce of a tensor, counted by its entry as all ranks count: nobody
// has to tell anybody, and a tensor's samples do not depend on the bucket it is in.
//
// Results. The dense all-reduce only reads the inputs, and nothing of it reaches the tensors or
// what is kept back. So training goes on with the bits that it has without samples.
//
// Numbers. The sum is what the group gives for the tensor's dtype, with its factors. Compression
// gives something else for two reasons: it lacks what is kept back of this step, and it has what
// was kept back of earlier ones. Both are in the error. All ranks compare the same bits of the
// whole tensor, so they find the same numbers. A step with a NaN or an infinity does not count, nor
// does one whose sum is zero.
//
// Cost. The all-reduce, memory for the results of the sampled tensors, and a pass over both, in
// parts, so that others get their turn.
#include "lightcc/compression/sampled_sum.hpp"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/float_types.hpp"

namespace lightcc {
namespace {

/// Of one advance().
constexpr std::size_t kPartElems = std::size_t{1} << 18;

class SampledWork final : public Work {
 public:
  /// `sums` has memory for each of `sampled`, or null where its result is not wanted.
  SampledWork(Group& group,
              std::vector<SampledTensor> sampled,
              std::vector<std::shared_ptr<std::byte>> sums,
              const Reduction& reduction,
              TakenInTurns<TensorSample>& samples,
              std::unique_ptr<Work> compressed)
      : sampled_(std::move(sampled)),
        sums_(std::move(sums)),
        dtype_(reduction.dtype),
        samples_(samples),
        compressed_(std::move(compressed)) {
    std::vector<TensorSpan> spans;
    spans.reserve(sampled_.size());
    for (std::size_t i = 0; i < sampled_.size(); ++i) {
      const TensorSpan& span = sampled_[i].tensor.span;
      spans.push_back({.in = span.in, .out = sums_[i].get(), .count = span.count});
    }
    dense_ = group.allreduce(std::move(spans), reduction);
  }

  Result<Progress> advance() override {
    std::unique_ptr<Work>& work = dense_ != nullptr ? dense_ : compressed_;
    if (work != nullptr) {
      LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, work->advance());
      if (progress != Progress::kDone) {
        return progress;
      }
      work.reset();
      return Progress::kMoved;
    }
    if (next_ == sampled_.size()) {
      return Progress::kDone;
    }
    LIGHTCC_RETURN_IF_ERROR(compare_part());
    return Progress::kMoved;
  }

 private:
  Status compare_part() {
    const CompressedTensor& tensor = sampled_[next_].tensor;
    const std::size_t left = tensor.span.count - compared_;
    const std::size_t count = sums_[next_] == nullptr ? 0 : std::min(left, kPartElems);
    if (count > 0) {
      const std::size_t at = compared_ * element_size(dtype_);
      LIGHTCC_RETURN_IF_ERROR(tensor.entry->kernels->add_to_sums(
          sums_[next_].get() + at, tensor.span.out + at, count, dtype_, found_));
      compared_ += count;
    }
    if (count == left || count == 0) {
      conclude();
    }
    return {};
  }

  void conclude() {
    const SampledTensor& sampled = sampled_[next_];
    const double lengths = std::sqrt(found_.dense) * std::sqrt(found_.given);
    const SumAgreement agreement{
        .relative_error = found_.error / found_.dense,
        .cosine = lengths > 0.0 ? std::clamp(found_.product / lengths, -1.0, 1.0) : 0.0};
    if (found_.dense > 0.0 && std::isfinite(agreement.relative_error) && std::isfinite(lengths)) {
      CompressionUsage& usage = sampled.tensor.entry->usage;
      ++usage.samples;
      usage.agreement = agreement;
      samples_.push_back({sampled.process_set, sampled.name, agreement});
    }
    sums_[next_].reset();
    found_ = {};
    compared_ = 0;
    ++next_;
  }

  std::vector<SampledTensor> sampled_;
  std::vector<std::shared_ptr<std::byte>> sums_;
  DataType dtype_;
  TakenInTurns<TensorSample>& samples_;
  std::unique_ptr<Work> compressed_;
  std::unique_ptr<Work> dense_;
  std::size_t next_ = 0;      // That is compared,
  std::size_t compared_ = 0;  // as far as here,
  SampleSums found_;          // which gave these.
};

template <typename Type>
[[gnu::noinline]] void add(const std::byte* dense,
                           const std::byte* given,
                           std::size_t numel,
                           SampleSums& sums) {
  using Wire = Type::Wire;
  for (std::size_t i = 0; i < numel; ++i) {
    const double a = Type::decode(detail::load_as<Wire>(dense + i * sizeof(Wire)));
    const double b = Type::decode(detail::load_as<Wire>(given + i * sizeof(Wire)));
    sums.dense += a * a;
    sums.given += b * b;
    sums.product += a * b;
    sums.error += (a - b) * (a - b);
  }
}

}  // namespace

void add_to_sums(DataType dtype,
                 const std::byte* dense,
                 const std::byte* given,
                 std::size_t numel,
                 SampleSums& sums) {
  const IeeeFloatMode mode;
  detail::with_float_type(dtype,
                          [&](auto type) { add<decltype(type)>(dense, given, numel, sums); });
}

bool is_sampled(const TopkEntry& entry, std::uint64_t every) {
  return every > 0 && (entry.steps + 1) % every == 0;
}

Result<std::unique_ptr<Work>> make_sampled_allreduce(Group& group,
                                                     std::vector<SampledTensor> sampled,
                                                     const Reduction& reduction,
                                                     TakenInTurns<TensorSample>& samples,
                                                     std::unique_ptr<Work> compressed) {
  std::vector<std::shared_ptr<std::byte>> sums;
  sums.reserve(sampled.size());
  for (const SampledTensor& one : sampled) {
    const TensorSpan& span = one.tensor.span;
    const std::size_t bytes = span.count * element_size(reduction.dtype);
    try {
      sums.push_back(span.out == nullptr ? nullptr : one.tensor.entry->kernels->allocate(bytes));
    } catch (const std::bad_alloc&) {
      return make_error(ErrorCode::kSystem,
                        "no memory for the sum of '%s', of %zu bytes, which "
                        "LIGHT_COMPRESSION_SAMPLE asks for",
                        one.name.c_str(),
                        bytes);
    }
  }
  return std::unique_ptr<Work>(std::make_unique<SampledWork>(
      group, std::move(sampled), std::move(sums), reduction, samples, std::move(compressed)));
}

}  // namespace lightcc
