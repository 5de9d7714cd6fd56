#include "lightcc/compression/topk/list_writer.hpp"

#include <cstring>

#include "lightcc/compression/kernels/float_types.hpp"
#include "lightcc/compression/topk/list_layout.hpp"

namespace lightcc::detail {

ListWriter::ListWriter(std::span<std::byte> out,
                       std::size_t elements,
                       std::size_t capacity,
                       const TopkFormat& format,
                       std::size_t phase)
    : out_(out),
      capacity_(capacity),
      format_(format),
      phase_(phase),
      num_blocks_(topk_blocks(elements, phase)) {
  const ListLayout layout(num_blocks_, capacity, format);
  counts_ = out.data() + layout.counts;
  exponents_ = out.data() + layout.exponents;
  offsets_ = out.data() + layout.offsets;
  values_ = out.data() + layout.values;
}

void ListWriter::finish_block(std::size_t count, int exponent) {
  store_as(counts_ + block_ * sizeof(std::uint32_t), static_cast<std::uint32_t>(count));
  if (format_.has_scales()) {
    store_as(exponents_ + block_ * sizeof(std::int16_t), static_cast<std::int16_t>(exponent));
  }
  count_ += count;
  ++block_;
}

std::size_t ListWriter::finish() {
  const ListLayout layout(num_blocks_, count_, format_);
  std::memmove(out_.data() + layout.values, values_, count_ * format_.value_bytes());
  write_header(false);
  return layout.end;
}

std::size_t ListWriter::finish_non_finite() {
  restart();
  const ListLayout layout(num_blocks_, 0, format_);
  std::memset(counts_, 0, layout.end - layout.counts);
  write_header(true);
  return layout.end;
}

void ListWriter::restart() {
  block_ = 0;
  count_ = 0;
}

void ListWriter::write_header(bool non_finite) {
  std::byte* to = out_.data();
  std::memcpy(to, kListMagic.data(), kListMagic.size());
  store_as(to + kDtypeAt, static_cast<std::uint8_t>(format_.dtype));
  store_as(to + kFlagsAt,
           static_cast<std::uint8_t>((non_finite ? kFlagNonFinite : 0U) |
                                     (format_.has_scales() ? kFlagScales : 0U)));
  store_as(to + kPhaseAt, static_cast<std::uint16_t>(phase_));
  store_as(to + kCountAt, static_cast<std::uint64_t>(count_));
}

}  // namespace lightcc::detail
