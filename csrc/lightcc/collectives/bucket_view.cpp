// Merges neighbouring tensors once, then finds ranges by binary search. (Idea: bucket_view.hpp.)
#include "lightcc/collectives/bucket_view.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "lightcc/collectives/group.hpp"

namespace lightcc {
namespace {

/// Whether `next` continues `previous` in memory, on both sides.
bool continues(const TensorSpan& previous, const TensorSpan& next, std::size_t element_bytes) {
  const std::size_t bytes = previous.count * element_bytes;
  const bool in = previous.in == nullptr ? next.in == nullptr : previous.in + bytes == next.in;
  const bool out = previous.out == nullptr ? next.out == nullptr : previous.out + bytes == next.out;
  return in && out;
}

}  // namespace

std::vector<TensorSpan> blocks_of(const std::byte* in,
                                  std::byte* out,
                                  const std::vector<std::size_t>& counts,
                                  int own,
                                  std::size_t element_bytes) {
  std::vector<TensorSpan> blocks;
  blocks.reserve(counts.size());
  for (std::size_t member = 0; member < counts.size(); ++member) {
    const bool is_own = member == static_cast<std::size_t>(own);
    blocks.push_back({.in = in, .out = is_own ? out : nullptr, .count = counts[member]});
    in += in != nullptr ? counts[member] * element_bytes : 0;
  }
  return blocks;
}

std::vector<TensorSpan> gathered_blocks(const std::byte* in,
                                        std::byte* out,
                                        const std::vector<std::size_t>& bytes,
                                        int own) {
  std::vector<TensorSpan> blocks;
  blocks.reserve(bytes.size());
  for (std::size_t member = 0; member < bytes.size(); ++member) {
    const bool is_own = member == static_cast<std::size_t>(own);
    blocks.push_back({.in = is_own ? in : nullptr, .out = out, .count = bytes[member]});
    out += bytes[member];
  }
  return blocks;
}

void count_bytes(std::vector<TensorSpan>& tensors,
                 std::vector<std::size_t>& counts,
                 std::size_t element_bytes) {
  for (TensorSpan& tensor : tensors) {
    tensor.count *= element_bytes;
  }
  for (std::size_t& count : counts) {
    count *= element_bytes;
  }
}

BucketView::BucketView(const std::vector<TensorSpan>& tensors,
                       std::size_t element_bytes,
                       Joining joining)
    : element_bytes_(element_bytes) {
  for (const TensorSpan& tensor : tensors) {
    if (tensor.count == 0) {
      continue;
    }
    if (joining == Joining::kNeighbours && !spans_.empty() &&
        continues(spans_.back(), tensor, element_bytes)) {
      spans_.back().count += tensor.count;
    } else {
      spans_.push_back(tensor);
      starts_.push_back(total_);
    }
    total_ += tensor.count;
  }
}

bool BucketView::scattered() const {
  return spans_.size() > 1 ||
         (spans_.size() == 1 && (spans_.front().in == nullptr || spans_.front().out == nullptr));
}

std::size_t BucketView::find(std::size_t element) const {
  const auto after = std::ranges::upper_bound(starts_, element);
  return after == starts_.begin() ? 0 : static_cast<std::size_t>(after - starts_.begin()) - 1;
}

template <typename Pointer>
Pointer BucketView::contiguous(Pointer TensorSpan::* side, ElementRange range) const {
  if (range.count == 0) {
    return nullptr;
  }
  std::size_t i = find(range.first);
  if (spans_[i].*side == nullptr) {
    return nullptr;
  }
  const Pointer begin = spans_[i].*side + (range.first - starts_[i]) * element_bytes_;
  for (++i; i < spans_.size() && starts_[i] < range.first + range.count; ++i) {
    if (spans_[i].*side != begin + (starts_[i] - range.first) * element_bytes_) {
      return nullptr;
    }
  }
  return begin;
}

const std::byte* BucketView::contiguous_in(ElementRange range) const {
  return contiguous(&TensorSpan::in, range);
}

std::byte* BucketView::contiguous_out(ElementRange range) const {
  return contiguous(&TensorSpan::out, range);
}

void BucketView::pack(ElementRange range, std::byte* into) const {
  for_each_piece(range, [&](const TensorSpan& piece, std::size_t offset) {
    std::byte* const to = into + offset * element_bytes_;
    if (piece.in != nullptr) {
      std::memcpy(to, piece.in, piece.count * element_bytes_);
    } else {
      std::memset(to, 0, piece.count * element_bytes_);
    }
  });
}

void BucketView::unpack(ElementRange range,
                        std::size_t skip_bytes,
                        std::span<const std::byte> bytes) const {
  const ElementRange part{.first = range.first + skip_bytes / element_bytes_,
                          .count = bytes.size() / element_bytes_};
  for_each_piece(part, [&](const TensorSpan& piece, std::size_t offset) {
    if (piece.out != nullptr) {
      std::memcpy(piece.out, bytes.data() + offset * element_bytes_, piece.count * element_bytes_);
    }
  });
}

}  // namespace lightcc
