// What the members of a block scatter or gather of several tensors, in one operation.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "lightcc/collectives/group.hpp"

namespace lightcc {

/// The parts of tensors, in the order that Group::reduce_scatter_bucket() wants: all of member 0,
/// then all of member 1, and so on.
class MemberSpans {
 public:
  explicit MemberSpans(std::size_t members) : of_(members), counts_(members, 0) {}

  void add(std::size_t member, const TensorSpan& span) {
    of_[member].push_back(span);
    counts_[member] += span.count;
    is_empty_ = false;
  }
  bool is_empty() const { return is_empty_; }
  /// Elements of each member.
  const std::vector<std::size_t>& counts() const { return counts_; }
  std::vector<TensorSpan> spans() const {
    std::vector<TensorSpan> all;
    for (const std::vector<TensorSpan>& of_member : of_) {
      all.insert(all.end(), of_member.begin(), of_member.end());
    }
    return all;
  }

 private:
  std::vector<std::vector<TensorSpan>> of_;
  std::vector<std::size_t> counts_;
  bool is_empty_ = true;
};

/// What members of a block pass on to each other.
struct GatheredSpans {
  explicit GatheredSpans(std::size_t members) : shards(members), lists(members) {}
  MemberSpans shards;  ///< They count elements.
  MemberSpans lists;   ///< They count bytes.
};

}  // namespace lightcc
