// A bucket of tensors seen as one long row of elements, without copying: elements are numbered
// through all spans, and a range of them is visited piece by piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "lightcc/collectives/group.hpp"

namespace lightcc {

class ShmSpans {
 public:
  /// The elements of `spans` together take less than SIZE_MAX bytes.
  ShmSpans(std::vector<TensorSpan> spans, std::size_t element_bytes)
      : spans_(std::move(spans)), element_bytes_(element_bytes) {
    starts_.reserve(spans_.size());
    for (const TensorSpan& span : spans_) {
      starts_.push_back(count_);
      count_ += span.count;
    }
  }

  std::size_t count() const { return count_; }
  std::size_t element_bytes() const { return element_bytes_; }

  /// Calls visit(in, out, first, count) for the pieces of elements [offset, offset + count), where
  /// `first` counts from `offset`. in and out are null where the span's are.
  template <typename Visit>
  void visit(std::size_t offset, std::size_t count, const Visit& visit) const {
    if (count == 0) {
      return;
    }
    const auto after = std::ranges::upper_bound(starts_, offset);
    auto index = static_cast<std::size_t>(after - starts_.begin()) - 1;
    for (std::size_t done = 0; done < count; ++index) {
      const TensorSpan& span = spans_[index];
      const std::size_t skip = offset + done - starts_[index];
      const std::size_t piece = std::min(count - done, span.count - skip);
      if (piece != 0) {
        const std::size_t skip_bytes = skip * element_bytes_;
        visit(span.in == nullptr ? nullptr : span.in + skip_bytes,
              span.out == nullptr ? nullptr : span.out + skip_bytes,
              done,
              piece);
      }
      done += piece;
    }
  }

 private:
  std::vector<TensorSpan> spans_;
  std::vector<std::size_t> starts_;  // Of each span, in elements.
  std::size_t element_bytes_;
  std::size_t count_ = 0;
};

}  // namespace lightcc
