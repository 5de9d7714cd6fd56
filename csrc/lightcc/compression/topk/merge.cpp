#include "lightcc/compression/topk/merge.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lightcc/base/half.hpp"
#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/kernels/float_types.hpp"

namespace lightcc {
namespace {

using detail::load_as;
using detail::store_as;

/// Which elements of a block have a sum so far.
class Presence {
 public:
  bool test(std::size_t offset) const { return (words_[offset / 64] >> (offset % 64) & 1U) != 0; }
  void set(std::size_t offset) { words_[offset / 64] |= std::uint64_t{1} << (offset % 64); }
  void clear(std::size_t offset) { words_[offset / 64] &= ~(std::uint64_t{1} << (offset % 64)); }

 private:
  std::array<std::uint64_t, kTopkBlockElems / 64> words_{};
};

/// Where float16 and bfloat16 are summed: one block, kept by the thread.
std::byte* wide_block() {
  thread_local std::vector<std::byte> block(kTopkBlockElems * sizeof(float));
  return block.data();
}

template <typename Type>
class Merger {
 public:
  using Lane = Type::Lane;
  using Wire = Type::Wire;

  Merger(std::span<const TopkListView> lists,
         std::byte* out,
         std::size_t elements,
         double postscale)
      : lists_(lists),
        out_(out),
        elements_(elements),
        postscale_(static_cast<Lane>(postscale)),
        scaled_(postscale != 1.0),
        entries_(lists.size(), 0) {}

  // Out of line: compilers do not order arithmetic against the float mode.
  [[gnu::noinline]] void run() {
    const std::size_t phase = lists_.empty() ? 0 : lists_.front().phase;
    const std::size_t num_blocks = topk_blocks(elements_, phase);
    std::size_t begin = 0;
    for (std::size_t block = 0; block < num_blocks; ++block) {
      const std::size_t first_offset = block == 0 ? phase : 0;
      const std::size_t end = std::min(begin + kTopkBlockElems - first_offset, elements_);
      std::byte* out = out_ + begin * sizeof(Wire);
      std::memset(out, 0, (end - begin) * sizeof(Wire));
      std::byte* sums = Type::kRounds ? wide_block() : out;
      for (std::size_t i = 0; i < lists_.size(); ++i) {
        add(lists_[i], block, entries_[i], first_offset, sums);
      }
      for (std::size_t i = 0; i < lists_.size(); ++i) {
        finish(lists_[i], block, entries_[i], first_offset, sums, out);
        entries_[i] += lists_[i].block_count(block);
      }
      begin = end;
    }
  }

 private:
  void add(const TopkListView& list,
           std::size_t block,
           std::size_t entry,
           std::size_t first_offset,
           std::byte* sums) {
    if (!list.format.has_scales()) {
      return add_values(list, block, entry, first_offset, sums, [&](std::size_t at) {
        return Type::decode(load_as<Wire>(list.values + at * sizeof(Wire)));
      });
    }
    const Lane scale = detail::power_of_two<Lane>(list.block_exponent(block));
    add_values(list, block, entry, first_offset, sums, [&](std::size_t at) {
      return Lane{half_to_float(load_as<std::uint16_t>(list.values + at * sizeof(std::uint16_t)))} *
             scale;
    });
  }

  template <typename Value>
  void add_values(const TopkListView& list,
                  std::size_t block,
                  std::size_t entry,
                  std::size_t first_offset,
                  std::byte* sums,
                  const Value& value) {
    const std::size_t end = entry + list.block_count(block);
    for (; entry < end; ++entry) {
      const std::size_t at = list.offset(entry) - first_offset;
      std::byte* sum = sums + at * sizeof(Lane);
      // What is stored where nothing is present is not used, only read.
      const Lane before = load_as<Lane>(sum);
      const Lane x = value(entry);
      store_as(sum, present_.test(at) ? before + x : x);
      present_.set(at);
    }
  }

  /// Scales, rounds and stores the sums of a list's elements, unless another list's turn did.
  void finish(const TopkListView& list,
              std::size_t block,
              std::size_t entry,
              std::size_t first_offset,
              const std::byte* sums,
              std::byte* out) {
    const std::size_t end = entry + list.block_count(block);
    for (; entry < end; ++entry) {
      const std::size_t at = list.offset(entry) - first_offset;
      if (!present_.test(at)) {
        continue;
      }
      present_.clear(at);
      Lane sum = load_as<Lane>(sums + at * sizeof(Lane));
      if (scaled_) {
        sum = sum * postscale_;
      }
      sum = std::isnan(sum) ? detail::one_nan<Lane>() : sum;
      store_as(out + at * sizeof(Wire), Type::encode(sum));
    }
  }

  std::span<const TopkListView> lists_;
  std::byte* out_;
  std::size_t elements_;
  Lane postscale_;
  bool scaled_;
  std::vector<std::size_t> entries_;  ///< The first of the block at hand, for each list.
  Presence present_;
};

Status check(std::span<const TopkListView> lists, std::size_t elements, DataType dtype) {
  for (const TopkListView& list : lists) {
    if (list.elements != elements || list.format.dtype != dtype ||
        list.phase != lists.front().phase) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a list of %zu elements of %s at phase %zu among lists of %zu of %s at %zu",
                        list.elements,
                        data_type_name(list.format.dtype),
                        list.phase,
                        elements,
                        data_type_name(dtype),
                        lists.front().phase);
    }
  }
  return {};
}

}  // namespace

bool any_non_finite(std::span<const TopkListView> lists) {
  return std::ranges::any_of(lists, &TopkListView::non_finite);
}

Status merge_lists(std::span<const TopkListView> lists,
                   std::byte* out,
                   std::size_t elements,
                   DataType dtype,
                   double postscale) {
  LIGHTCC_RETURN_IF_ERROR(check(lists, elements, dtype));
  const bool non_finite = any_non_finite(lists);
  detail::with_float_type(dtype, [&](auto type) {
    using Type = decltype(type);
    if (non_finite) {
      const auto nan = Type::encode(detail::one_nan<typename Type::Lane>());
      for (std::size_t i = 0; i < elements; ++i) {
        store_as(out + i * sizeof(nan), nan);
      }
      return;
    }
    const IeeeFloatMode mode;
    Merger<Type>(lists, out, elements, postscale).run();
  });
  return {};
}

}  // namespace lightcc
