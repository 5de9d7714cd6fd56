// The tables of a merge (kernels/merge.hpp), filled for one sum after another.
#pragma once

#include <cstddef>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/compression/topk/list_layout.hpp"

#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/kernels/merge.hpp"
#include "lightcc_cuda/staging/topk_site_impl.hpp"

namespace lightcc::cuda::detail {

/// A list whose front, offsets and values are at these addresses.
inline MergeList merge_list(Address front,
                            const lightcc::detail::ListLayout& layout,
                            bool has_scales,
                            Address offsets,
                            Address values) {
  return {.header = at<const u64>(front),
          .counts = at<const u32>(front + layout.counts),
          .exponents = has_scales ? at<const i16>(front + layout.exponents) : nullptr,
          .offsets = at<const u16>(offsets),
          .values = at<const u8>(values)};
}

/// Words of `begins` that the lists of a sum need.
inline std::size_t merge_begins(std::size_t elements, std::size_t lists) {
  return lists * tiles_of(elements, kTopkWireBlock);
}

class MergeRows {
 public:
  std::vector<MergeTensor> rows;
  std::vector<MergeList> lists;
  u64 tiles = 0;

  /// `begins`, and a word `are_nan` for each: of all sums.
  MergeRows(Address begins, Address are_nan) : begins_(begins), are_nan_(are_nan) {}

  /// Adds a sum of `of_sum`, of at most `capacity` entries each.
  void add(std::byte* out,
           std::size_t elements,
           DataType dtype,
           double postscale,
           u64 capacity,
           const std::vector<MergeList>& of_sum) {
    MergeTensor row{};
    row.first = tiles;
    row.first_list = lists.size();
    row.begins = at<u32>(begins_);
    row.is_nan = at<u32>(are_nan_ + rows.size() * sizeof(u32));
    row.out = reinterpret_cast<u8*>(out);  // NOLINT: of the GPU
    row.elements = elements;
    row.capacity = capacity;
    row.postscale = postscale;
    row.num_lists = static_cast<u32>(of_sum.size());
    row.dtype = static_cast<u32>(dtype);
    rows.push_back(row);
    lists.insert(lists.end(), of_sum.begin(), of_sum.end());
    begins_ += merge_begins(elements, of_sum.size()) * sizeof(u32);
    tiles += tiles_of(elements, kMergeTile);
  }

  /// What the launches are given, with the tables at these addresses.
  MergeArguments arguments(Address rows_at, Address lists_at) const {
    return {.tensors = at<const MergeTensor>(rows_at),
            .lists = at<const MergeList>(lists_at),
            .count = static_cast<u32>(rows.size()),
            .num_lists = static_cast<u32>(lists.size())};
  }

 private:
  Address begins_;
  Address are_nan_;
};

}  // namespace lightcc::cuda::detail
