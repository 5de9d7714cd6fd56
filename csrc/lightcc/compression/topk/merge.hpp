// The sum of sparse lists, as dense elements: the same bits on every member that merges the same
// lists.
//
// Goes block by block, so that what is scattered to stays in the L2 cache; the work besides zeroing
// the output is proportional to the entries. There are no SIMD levels to differ.
#pragma once

#include <cstddef>
#include <span>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/compression/topk/topk_list.hpp"

namespace lightcc {

/// Writes to `out` (elements of `dtype`, any alignment), for each of `elements` elements:
/// - 0.0 where no list has it, whatever the postscale;
/// - otherwise postscale * (x_a + x_b + ...) over the lists that have it, in the order of `lists`
///   (rank order), beginning with the first one's value and not with zero: the bits are those of
///   reduce() over the senders alone. float16, bfloat16 and float32 are summed and scaled in
///   float32 and rounded once, float64 in float64.
/// If any list is flagged as not finite, every element becomes the one NaN of reduce().
///
/// No list at all gives zeros. Errors: kInvalidArgument when a list has another number of elements,
/// another dtype or another phase than the rest; nothing is written then. fp16 lists and plain ones
/// may be mixed. Thread: any, IEEE mode is set for the call. hot: allocates once per thread.
LIGHTCC_EXPORT Status merge_lists(std::span<const TopkListView> lists,
                                  std::byte* out,
                                  std::size_t elements,
                                  DataType dtype,
                                  double postscale);

/// Whether merge_lists() of these would be all NaN.
bool any_non_finite(std::span<const TopkListView> lists);

}  // namespace lightcc
