// Sizes and the parser. Lists made from lists: list_cut.cpp.
#include "lightcc/compression/topk/topk_list.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lightcc/base/half.hpp"
#include "lightcc/compression/kernels/float_types.hpp"
#include "lightcc/compression/topk/list_layout.hpp"

namespace lightcc {
namespace {

using detail::load_as;

/// Header and lengths; fills `view`.
Status parse_frame(std::span<const std::byte> bytes, TopkListView& view) {
  if (bytes.size() < kTopkHeaderBytes) {
    return make_error(
        ErrorCode::kPeerFailed, "a top-k list of %zu bytes, less than its header", bytes.size());
  }
  const std::byte* from = bytes.data();
  if (std::memcmp(from, detail::kListMagic.data(), detail::kListMagic.size()) != 0) {
    return make_error(ErrorCode::kPeerFailed,
                      "what should be a top-k list does not begin as one of this version");
  }
  const auto dtype = load_as<std::uint8_t>(from + detail::kDtypeAt);
  if (dtype != static_cast<std::uint8_t>(view.format.dtype)) {
    return make_error(ErrorCode::kPeerFailed,
                      "a top-k list of element type %u, where %s is expected",
                      unsigned{dtype},
                      data_type_name(view.format.dtype));
  }
  const unsigned flags = load_as<std::uint8_t>(from + detail::kFlagsAt);
  const bool has_scales = (flags & detail::kFlagScales) != 0;
  if ((flags & ~(detail::kFlagNonFinite | detail::kFlagScales)) != 0 ||
      has_scales != view.format.has_scales()) {
    return make_error(ErrorCode::kPeerFailed,
                      "a top-k list with flags %u, where fp16 is %s",
                      flags,
                      view.format.has_scales() ? "on" : "off");
  }
  const auto phase = load_as<std::uint16_t>(from + detail::kPhaseAt);
  if (phase != view.phase) {
    return make_error(ErrorCode::kPeerFailed,
                      "a top-k list of phase %u, where %zu is expected",
                      unsigned{phase},
                      view.phase);
  }
  const auto count = load_as<std::uint64_t>(from + detail::kCountAt);
  if (count > view.elements) {
    return make_error(ErrorCode::kPeerFailed,
                      "a top-k list of %llu entries for %zu elements",
                      static_cast<unsigned long long>(count),
                      view.elements);
  }
  view.non_finite = (flags & detail::kFlagNonFinite) != 0;
  view.count = static_cast<std::size_t>(count);
  if (view.non_finite && view.count != 0) {
    return make_error(
        ErrorCode::kPeerFailed, "a top-k list that is not finite and has %zu entries", view.count);
  }
  const detail::ListLayout layout(view.num_blocks, view.count, view.format);
  if (bytes.size() != layout.end) {
    return make_error(ErrorCode::kPeerFailed,
                      "a top-k list of %zu bytes, where %zu entries take %zu",
                      bytes.size(),
                      view.count,
                      layout.end);
  }
  view.counts = from + layout.counts;
  view.exponents = view.format.has_scales() ? from + layout.exponents : nullptr;
  view.offsets = from + layout.offsets;
  view.values = from + layout.values;
  return {};
}

/// Whether `count` offsets ascend and lie in [first, end).
bool offsets_are_valid(const std::byte* offsets,
                       std::size_t count,
                       std::size_t first,
                       std::size_t end) {
  if (count == 0) {
    return true;
  }
  const auto at = [&](std::size_t i) {
    return load_as<std::uint16_t>(offsets + i * sizeof(std::uint16_t));
  };
  unsigned descents = 0;
  for (std::size_t i = 1; i < count; ++i) {
    descents |= at(i) <= at(i - 1) ? 1U : 0U;
  }
  return descents == 0 && at(0) >= first && at(count - 1) < end;
}

Status check_blocks(const TopkListView& view) {
  std::size_t entry = 0;
  for (std::size_t block = 0; block < view.num_blocks; ++block) {
    const std::size_t count = view.block_count(block);
    if (count > view.count - entry) {
      return make_error(ErrorCode::kPeerFailed,
                        "a top-k list whose blocks have more than its %zu entries",
                        view.count);
    }
    const std::size_t first = block == 0 ? view.phase : 0;
    const std::size_t end =
        std::min(view.phase + view.elements - block * kTopkBlockElems, kTopkBlockElems);
    if (!offsets_are_valid(view.offsets + entry * sizeof(std::uint16_t), count, first, end)) {
      return make_error(
          ErrorCode::kPeerFailed,
          "a top-k list whose block %zu has offsets that do not ascend from %zu to %zu",
          block,
          first,
          end);
    }
    entry += count;
  }
  if (entry != view.count) {
    return make_error(ErrorCode::kPeerFailed,
                      "a top-k list of %zu entries whose blocks have %zu",
                      view.count,
                      entry);
  }
  return {};
}

template <typename Type>
bool values_are_finite(const TopkListView& view) {
  using Wire = Type::Wire;
  unsigned bad = 0;
  for (std::size_t i = 0; i < view.count; ++i) {
    const auto lane = Type::decode(load_as<Wire>(view.values + i * sizeof(Wire)));
    bad |= detail::magnitude_key(lane) >= detail::kInfinityKey<typename Type::Lane> ? 1U : 0U;
  }
  return bad == 0;
}

Status check_scaled_values(const TopkListView& view) {
  const bool is_double = view.format.dtype == DataType::kFloat64;
  const int minimum =
      is_double ? detail::kMinScaleExponent<double> : detail::kMinScaleExponent<float>;
  const int maximum =
      is_double ? detail::kMaxScaleExponent<double> : detail::kMaxScaleExponent<float>;
  for (std::size_t block = 0; block < view.num_blocks; ++block) {
    const int exponent = view.block_exponent(block);
    if (exponent < minimum || exponent > maximum) {
      return make_error(ErrorCode::kPeerFailed,
                        "a top-k list with the scale 2^%d, outside of 2^%d to 2^%d",
                        exponent,
                        minimum,
                        maximum);
    }
  }
  unsigned bad = 0;
  for (std::size_t i = 0; i < view.count; ++i) {
    const auto half = load_as<std::uint16_t>(view.values + i * sizeof(std::uint16_t));
    bad |= (half & 0x7fffU) > detail::kHalfLimitBits ? 1U : 0U;
  }
  return bad == 0
             ? Status()
             : make_error(ErrorCode::kPeerFailed, "a top-k list with a float16 value above 32752");
}

Status check_values(const TopkListView& view) {
  if (view.format.has_scales()) {
    return check_scaled_values(view);
  }
  const bool finite = detail::with_float_type(
      view.format.dtype, [&](auto type) { return values_are_finite<decltype(type)>(view); });
  return finite
             ? Status()
             : make_error(ErrorCode::kPeerFailed, "a top-k list with values that are not finite");
}

}  // namespace

std::size_t topk_blocks(std::size_t elements, std::size_t phase) {
  if (elements == 0) {
    return 0;
  }
  const std::size_t last = phase + elements - 1;
  return last / kTopkBlockElems + 1;
}

std::size_t list_bytes(std::size_t elements,
                       std::size_t count,
                       const TopkFormat& format,
                       std::size_t phase) {
  return detail::ListLayout(topk_blocks(elements, phase), count, format).end;
}

std::size_t max_list_bytes(std::size_t elements,
                           std::size_t capacity,
                           const TopkFormat& format,
                           std::size_t phase) {
  return list_bytes(elements, std::min(capacity, elements), format, phase);
}

std::size_t TopkListView::block_count(std::size_t block) const {
  return load_as<std::uint32_t>(counts + block * sizeof(std::uint32_t));
}

int TopkListView::block_exponent(std::size_t block) const {
  return exponents == nullptr ? 0 : load_as<std::int16_t>(exponents + block * sizeof(std::int16_t));
}

std::size_t TopkListView::offset(std::size_t entry) const {
  return load_as<std::uint16_t>(offsets + entry * sizeof(std::uint16_t));
}

double TopkListView::value(std::size_t block, std::size_t entry) const {
  if (format.has_scales()) {
    const auto half = load_as<std::uint16_t>(values + entry * sizeof(std::uint16_t));
    return std::ldexp(static_cast<double>(half_to_float(half)), block_exponent(block));
  }
  return detail::with_float_type(format.dtype, [&](auto type) -> double {
    using Wire = decltype(type)::Wire;
    return decltype(type)::decode(load_as<Wire>(values + entry * sizeof(Wire)));
  });
}

Result<TopkListView> parse_list(std::span<const std::byte> bytes,
                                std::size_t elements,
                                const TopkFormat& format,
                                std::size_t phase) {
  TopkListView view;
  view.elements = elements;
  view.phase = phase;
  view.format = format;
  view.num_blocks = topk_blocks(elements, phase);
  LIGHTCC_RETURN_IF_ERROR(parse_frame(bytes, view));
  LIGHTCC_RETURN_IF_ERROR(check_blocks(view));
  LIGHTCC_RETURN_IF_ERROR(check_values(view));
  return view;
}

}  // namespace lightcc
