// The arithmetic of shares, free of overflow for any count that fits in memory. (Idea: the header.)
#include "lightcc/collectives/share_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "lightcc/collectives/bucket_view.hpp"

namespace lightcc {
namespace {

// Cuts at multiples of a cache line keep the kernels' loads inside lines when tensors are aligned.
constexpr std::size_t kLineBytes = 64;

std::size_t ceil_div(std::size_t value, std::size_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

}  // namespace

SharePlan::SharePlan(std::size_t element_bytes, std::size_t piece_bytes)
    : piece_bytes_(std::max<std::size_t>(1, ceil_div(piece_bytes, kLineBytes)) * kLineBytes),
      piece_elements_(piece_bytes_ / element_bytes),
      line_elements_(kLineBytes / element_bytes) {}

SharePlan SharePlan::even(std::size_t total_elements,
                          std::size_t element_bytes,
                          std::size_t members,
                          std::size_t piece_bytes) {
  SharePlan plan(element_bytes, piece_bytes);
  plan.total_ = total_elements;
  plan.members_ = members;
  const std::size_t lines = ceil_div(total_elements, plan.line_elements_);
  plan.chunks_ = ceil_div(lines, members * (plan.piece_bytes_ / kLineBytes));
  const std::size_t pieces = std::max<std::size_t>(1, plan.chunks_ * members);
  plan.lines_of_each_ = lines / pieces;
  plan.longer_ = lines % pieces;
  return plan;
}

SharePlan SharePlan::by_counts(const std::vector<std::size_t>& counts,
                               std::size_t element_bytes,
                               std::size_t piece_bytes) {
  SharePlan plan(element_bytes, piece_bytes);
  plan.counts_ = counts;
  for (const std::size_t count : counts) {
    plan.starts_.push_back(plan.total_);
    plan.total_ += count;
    plan.chunks_ = std::max(plan.chunks_, ceil_div(count, plan.piece_elements_));
  }
  return plan;
}

ElementRange SharePlan::piece(std::size_t chunk, std::size_t member) const {
  if (chunk >= chunks_) {
    return {};
  }
  if (!counts_.empty()) {
    const std::size_t skip = std::min(chunk * piece_elements_, counts_[member]);
    return {.first = starts_[member] + skip,
            .count = std::min(piece_elements_, counts_[member] - skip)};
  }
  const std::size_t index = chunk * members_ + member;
  const std::size_t first_line = index * lines_of_each_ + std::min(index, longer_);
  const std::size_t first = std::min(first_line * line_elements_, total_);
  const std::size_t lines = lines_of_each_ + (index < longer_ ? 1 : 0);
  return {.first = first, .count = std::min(lines * line_elements_, total_ - first)};
}

}  // namespace lightcc
