// One step of a state: from a shard and the residual to a list and the next residual.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/residual/lane_pair.hpp"
#include "lightcc/compression/topk/list_writer.hpp"
#include "lightcc/compression/topk/topk_list.hpp"

namespace lightcc {

/// What one compress() is to do.
struct TopkRequest {
  std::size_t k = 0;         ///< 1 .. numel (0 for an empty shard): topk_k().
  std::size_t capacity = 0;  ///< Entries that the list may have, k .. numel: topk_capacity().
  bool exact = false;        ///< Exactly k entries, ties to the lower index.
  bool fp16 = false;         ///< TopkFormat::fp16; what rounding takes away stays in the residual.
  bool two_bits = false;     ///< TopkFormat::two_bits; the same.
  double momentum = 0.0;     ///< 0: no momentum correction. Below 1.
  SimdLevel level = detect_simd_level();
};

struct TopkOutcome {
  std::size_t bytes = 0;  ///< The list has so many.
  std::size_t count = 0;  ///< Entries.
  bool non_finite =
      false;       ///< acc holds a NaN or infinity: the list is flagged and has no entries.
  int passes = 0;  ///< Over the shard and the residual; 1 in steady state.
};

namespace detail {

/// What a step hands to the next one for its threshold.
struct TopkForecast {
  double threshold = 0.0;  ///< To select from; 0: to be found exactly.
  double ideal = 0.0;      ///< The k-th largest magnitude of the step, exactly or about.
  std::uint64_t k = 0;     ///< The forecast holds for this k alone.
  bool operator==(const TopkForecast&) const = default;
};

/// What a step reads (committed arrays) and writes (next arrays).
struct TopkStepJob {
  DataType dtype = DataType::kFloat32;
  std::size_t numel = 0;
  std::uint64_t step = 0;
  double momentum = 0.0;
  SimdLevel level = SimdLevel::kPlain;
  LanePair* residual = nullptr;
  LanePair* velocity = nullptr;  ///< Null without momentum.
};

/// HostResidual::compress() with arguments that were checked. `forecast` is replaced by the next
/// step's, unless the outcome is not finite.
TopkOutcome run_topk_step(const TopkStepJob& job,
                          const std::byte* shard,
                          const TopkRequest& request,
                          TopkForecast& forecast,
                          ListWriter& writer);

/// HostResidual::flush_into(). Returns whether all is finite.
bool run_topk_flush(const TopkStepJob& job, std::byte* shard);

}  // namespace detail
}  // namespace lightcc
