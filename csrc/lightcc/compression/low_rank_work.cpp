// Low rank, for all tensors of a bucket together (low_rank_state.hpp has the step of one):
//
//   dense    tensors that are warming up are all-reduced as they are
//   project  the shares of P of all others, one after another in one array, which is all-reduced
//   collect  the same for R
//   finish   results, and what is kept back
//
// So a bucket costs two all-reduces, of r (n + k) lanes for each matrix in it, however many tensors
// it has. Both are dense all-reduces over all members by the group that any other one would take:
// two levels, lanes and transports are its business. Each rank compresses its own matrix whole. As
// P and R are linear, that gives what compressing the sums of hosts would.
//
// The all-reduces know nothing of buckets' borders: an element of a sum has the same bits wherever
// it lies. So the bucket that a tensor travels in does not matter to the result.
//
// A step that is void (low_rank_state.hpp) makes the tensor NaN on all ranks.
//
// Between two all-reduces one advance() computes one tensor.
#include "lightcc/compression/low_rank_work.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "lightcc/compression/low_rank_state_impl.hpp"
#include "lightcc/compression/merge.hpp"
#include "lightcc/compression/shard.hpp"

namespace lightcc {
namespace {

class LowRankWork final : public Work {
 public:
  LowRankWork(Group& group, std::vector<CompressedTensor> tensors, const CompressedJob& job)
      : group_(group), job_(job) {
    for (CompressedTensor& tensor : tensors) {
      if (tensor.entry->steps < job.spec.warmup_steps) {
        dense_.push_back(std::move(tensor));
        continue;
      }
      const LowRankState& state = *tensor.entry->low_rank;
      lane_bytes_ = element_size(state.lane_dtype());
      matrices_.push_back({.tensor = std::move(tensor),
                           .left_at = left_elems_ * lane_bytes_,
                           .right_at = right_elems_ * lane_bytes_});
      left_elems_ += state.left_elems();
      right_elems_ += state.right_elems();
    }
  }
  LowRankWork(const LowRankWork&) = delete;
  LowRankWork& operator=(const LowRankWork&) = delete;
  ~LowRankWork() override {
    work_.reset();
    for (const Matrix& matrix : matrices_) {
      state_of(matrix).rollback();  // Of a step that did not come to its end.
    }
  }

  Result<Progress> advance() override {
    if (work_ != nullptr) {
      LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, work_->advance());
      if (progress != Progress::kDone) {
        return progress;
      }
      work_.reset();
      return after(part_);
    }
    switch (part_) {
      case Part::kDense:
        if (dense_.empty()) {
          return after(part_);
        }
        work_ = all_reduce_dense();
        return Progress::kMoved;
      case Part::kProject:
        if (next_ == 0) {
          lefts_ = detail::AlignedBytes(left_elems_ * lane_bytes_);
        }
        if (next_ < matrices_.size()) {
          return project(matrices_[next_++]);
        }
        work_ = all_reduce(lefts_, left_elems_);
        return Progress::kMoved;
      case Part::kCollect:
        if (next_ == 0) {
          rights_ = detail::AlignedBytes(right_elems_ * lane_bytes_);
        }
        if (next_ < matrices_.size()) {
          return collect(matrices_[next_++]);
        }
        work_ = all_reduce(rights_, right_elems_);
        return Progress::kMoved;
      case Part::kFinish:
        break;
    }
    if (next_ == matrices_.size()) {
      return Progress::kDone;
    }
    return finish(matrices_[next_++]);
  }

 private:
  enum class Part : std::uint8_t { kDense, kProject, kCollect, kFinish };

  struct Matrix {
    CompressedTensor tensor;
    std::size_t left_at = 0;  ///< Bytes.
    std::size_t right_at = 0;
    bool is_void = false;
  };

  static LowRankState& state_of(const Matrix& matrix) { return *matrix.tensor.entry->low_rank; }

  Result<Progress> after(Part part) {
    if (part == Part::kDense) {
      for (const CompressedTensor& tensor : dense_) {
        LIGHTCC_RETURN_IF_ERROR(tensor.entry->keep_marked());
        const std::size_t elements = tensor.span.count;
        count(
            *tensor.entry, elements, bytes_sent(*tensor.entry, elements, job_.reduction.dtype), 0);
        ++tensor.entry->steps;
        tensor.entry->state_stayed = true;
        ++tensor.entry->usage.steps;
      }
      if (matrices_.empty()) {
        part_ = Part::kFinish;
        return Progress::kDone;
      }
    }
    part_ = static_cast<Part>(static_cast<std::uint8_t>(part) + 1);
    next_ = 0;
    return Progress::kMoved;
  }

  std::unique_ptr<Work> all_reduce_dense() {
    std::vector<TensorSpan> spans;
    spans.reserve(dense_.size());
    for (const CompressedTensor& tensor : dense_) {
      spans.push_back(tensor.span);
    }
    return group_.allreduce(std::move(spans), job_.reduction);
  }

  std::unique_ptr<Work> all_reduce(detail::AlignedBytes& lanes, std::size_t count) {
    const DataType dtype = state_of(matrices_.front()).lane_dtype();
    return group_.allreduce({{.in = lanes.data(), .out = lanes.data(), .count = count}},
                            {.dtype = dtype, .op = ReduceOp::kSum});
  }

  Result<Progress> project(const Matrix& matrix) {
    const std::byte* const in = matrix.tensor.span.in;
    LIGHTCC_RETURN_IF_ERROR(matrix.tensor.entry->keep_marked());
    LIGHTCC_RETURN_IF_ERROR(
        state_of(matrix).project(in, job_.reduction.prescale, lefts_.data() + matrix.left_at));
    return Progress::kMoved;
  }

  Result<Progress> collect(Matrix& matrix) {
    LowRankState& state = state_of(matrix);
    std::byte* const left = lefts_.data() + matrix.left_at;
    matrix.is_void = !state.orthonormalise(left);
    if (!matrix.is_void) {
      LIGHTCC_RETURN_IF_ERROR(state.collect(left, rights_.data() + matrix.right_at));
    }
    return Progress::kMoved;
  }

  Result<Progress> finish(Matrix& matrix) {
    LowRankState& state = state_of(matrix);
    TopkEntry& entry = *matrix.tensor.entry;
    std::byte* const out = matrix.tensor.span.out;
    if (!matrix.is_void) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool is_good,
                               state.finish(lefts_.data() + matrix.left_at,
                                            rights_.data() + matrix.right_at,
                                            job_.reduction.postscale,
                                            out));
      matrix.is_void = !is_good;
    }
    state.rollback();
    entry.state_stayed = matrix.is_void;
    if (!matrix.is_void) {
      entry.other_steps = entry.steps;
    }
    ++entry.steps;
    const DataType lane = state.lane_dtype();
    constexpr std::uint64_t kPasses = 3;
    count(
        entry,
        state.numel(),
        bytes_sent(entry, state.left_elems(), lane) + bytes_sent(entry, state.right_elems(), lane),
        kPasses);
    if (matrix.is_void) {
      LIGHTCC_RETURN_IF_ERROR(write_nan(matrix.tensor.span));
      return Progress::kMoved;
    }
    ++entry.usage.steps;
    entry.usage.add(state.energy());
    return Progress::kMoved;
  }

  /// A list that is not finite makes all elements NaN.
  Status write_nan(const TensorSpan& span) const {
    if (span.out == nullptr) {
      return {};
    }
    const DataType dtype = job_.reduction.dtype;
    const TopkListView flagged{
        .elements = span.count, .format = {.dtype = dtype}, .non_finite = true};
    return merge_lists({&flagged, 1}, span.out, span.count, dtype, 1.0);
  }

  /// What this member sends to others in a dense all-reduce.
  static std::uint64_t bytes_sent(const TopkEntry& entry, std::size_t elements, DataType dtype) {
    const GridPosition& position = entry.position;
    const ShardRange shard = topk_shard(elements, position.members, position.member, dtype);
    return 2 * (position.blocks - 1) * shard.size_elems() * element_size(dtype) / position.blocks;
  }

  void count(TopkEntry& entry,
             std::size_t elements,
             std::uint64_t sent,
             std::uint64_t passes) const {
    const std::uint64_t dense = bytes_sent(entry, elements, job_.reduction.dtype);
    job_.counters->tensors += 1;
    job_.counters->dense_bytes += dense;
    job_.counters->sent_bytes += sent;
    job_.counters->passes += passes;
    entry.usage.dense_bytes += dense;
    entry.usage.sent_bytes += sent;
  }

  Group& group_;
  CompressedJob job_;
  std::vector<CompressedTensor> dense_;
  std::vector<Matrix> matrices_;
  std::size_t lane_bytes_ = sizeof(float);
  std::size_t left_elems_ = 0;
  std::size_t right_elems_ = 0;
  detail::AlignedBytes lefts_;
  detail::AlignedBytes rights_;
  std::unique_ptr<Work> work_;
  Part part_ = Part::kDense;
  std::size_t next_ = 0;  ///< Of matrices_, that the part comes to.
};

}  // namespace

std::unique_ptr<Work> make_low_rank_allreduce(Group& group,
                                              std::vector<CompressedTensor> tensors,
                                              const CompressedJob& job) {
  return std::make_unique<LowRankWork>(group, std::move(tensors), job);
}

}  // namespace lightcc
