#include "lightcc/collectives/gather_bucket.hpp"

#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"

namespace lightcc {
namespace {

class GatherBucket final : public Work {
 public:
  /// This member contributes `own` of the bucket.
  GatherBucket(Group& group, BucketView bucket, ElementRange own, std::vector<std::size_t> bytes)
      : bucket_(std::move(bucket)) {
    const std::byte* in = bucket_.contiguous_in(own);
    if (in == nullptr) {
      packed_.resize(own.count * bucket_.element_bytes());
      bucket_.pack(own, packed_.data());
      in = packed_.data();
    }
    std::byte* out = bucket_.contiguous_out({0, bucket_.total_elements()});
    if (out == nullptr) {
      results_.resize(bucket_.total_elements() * bucket_.element_bytes());
      out = results_.data();
    }
    gather_ = group.allgather(in, out, std::move(bytes));
  }

  Result<Progress> advance() override {
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, gather_->advance());
    if (progress == Progress::kDone && !results_.empty()) {
      bucket_.unpack({0, bucket_.total_elements()}, 0, results_);
    }
    return progress;
  }

 private:
  BucketView bucket_;
  std::vector<std::byte> packed_;   ///< The own part; empty where it lies together.
  std::vector<std::byte> results_;  ///< All parts, likewise.
  std::unique_ptr<Work> gather_;
};

}  // namespace

std::unique_ptr<Work> make_gather_bucket(Group& group,
                                         const std::vector<TensorSpan>& tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) {
  const std::size_t element = element_size(dtype);
  const auto own = counts.begin() + group.rank();
  const ElementRange own_part{std::accumulate(counts.begin(), own, std::size_t{0}), *own};
  for (std::size_t& count : counts) {
    count *= element;
  }
  return std::make_unique<GatherBucket>(
      group, BucketView(tensors, element), own_part, std::move(counts));
}

}  // namespace lightcc
