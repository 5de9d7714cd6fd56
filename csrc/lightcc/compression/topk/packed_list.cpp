#include "lightcc/compression/topk/packed_list.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lightcc/base/half.hpp"
#include "lightcc/compression/kernels/float_types.hpp"
#include "lightcc/compression/topk/list_layout.hpp"
#include "lightcc/compression/topk/list_parts.hpp"
#include "lightcc/compression/topk/list_writer.hpp"

namespace lightcc {
namespace {

using detail::load_as;
using detail::store_as;

constexpr std::array kMagic = {'L', 'T', 'P', '\1'};  // The last byte is the version.
constexpr std::size_t kChunksInBlock = kTopkBlockElems / kTopkChunkElems;
constexpr std::size_t kChunkBytes = 3 * sizeof(std::uint16_t);  // Count, lower and upper magnitude.

constexpr std::size_t offsets_bytes(std::size_t count) {
  return (3 * count + 1) / 2;
}
constexpr std::size_t codes_bytes(std::size_t count) {
  return (count + 3) / 4;
}
constexpr std::size_t entries_bytes(std::size_t count) {
  return offsets_bytes(count) + codes_bytes(count);
}

/// Chunks that `elements` elements touch when the first is at `phase` in its block.
std::size_t chunks_of(std::size_t elements, std::size_t phase) {
  const std::size_t in_chunk = phase % kTopkChunkElems;
  return elements == 0 ? 0 : (in_chunk + elements - 1) / kTopkChunkElems + 1;
}

/// Calls `function` for the part of a block in each chunk that elements [begin, end) touch, in
/// order.
template <typename Function>
void for_each_chunk(const TopkListView& list,
                    std::size_t begin,
                    std::size_t end,
                    const Function& function) {
  std::size_t at = begin;
  detail::for_each_block_part(list, begin, end, [&](const detail::BlockPart& part) {
    const std::size_t part_end = std::min(end, (part.block + 1) * kTopkBlockElems - list.phase);
    std::size_t entry = part.first;
    while (at < part_end) {
      at = std::min(part_end, at + kTopkChunkElems - (list.phase + at) % kTopkChunkElems);
      const std::size_t first = entry;
      entry = detail::first_entry_from(list, part.block, first, part.end, at);
      function(detail::BlockPart{.block = part.block, .first = first, .end = entry});
    }
  });
}

std::size_t count_of(std::span<const std::byte> packed, std::size_t chunk) {
  return load_as<std::uint16_t>(packed.data() + kTopkHeaderBytes + chunk * kChunkBytes);
}

}  // namespace

std::size_t packed_range_bytes(const TopkListView& list, std::size_t begin, std::size_t end) {
  std::size_t bytes = kTopkHeaderBytes;
  for_each_chunk(list, begin, end, [&](const detail::BlockPart& chunk) {
    bytes += kChunkBytes + entries_bytes(chunk.end - chunk.first);
  });
  return bytes;
}

void pack_range(const TopkListView& list, std::size_t begin, std::size_t end, std::byte* out) {
  const std::size_t phase = (list.phase + begin) % kTopkBlockElems;
  std::byte* chunk_at = out + kTopkHeaderBytes;
  std::byte* to = chunk_at + chunks_of(end - begin, phase) * kChunkBytes;
  std::size_t total = 0;
  for_each_chunk(list, begin, end, [&](const detail::BlockPart& chunk) {
    const std::size_t count = chunk.end - chunk.first;
    double lower = 0.0;
    double upper = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      const double magnitude = std::abs(list.value(chunk.block, chunk.first + i));
      lower = i == 0 ? magnitude : std::min(lower, magnitude);
      upper = std::max(upper, magnitude);
    }
    store_as(chunk_at, static_cast<std::uint16_t>(count));
    store_as(chunk_at + 2, float_to_bfloat16(static_cast<float>(lower)));
    store_as(chunk_at + 4, float_to_bfloat16(static_cast<float>(upper)));
    chunk_at += kChunkBytes;
    std::memset(to, 0, entries_bytes(count));
    std::byte* const codes = to + offsets_bytes(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto offset = static_cast<unsigned>(list.offset(chunk.first + i) % kTopkChunkElems);
      std::byte* const pair = to + i / 2 * 3;
      if (i % 2 == 0) {
        pair[0] = static_cast<std::byte>(offset & 0xffU);
        pair[1] = static_cast<std::byte>(offset >> 8U);
      } else {
        pair[1] |= static_cast<std::byte>((offset & 0xfU) << 4U);
        pair[2] = static_cast<std::byte>(offset >> 4U);
      }
      const double value = list.value(chunk.block, chunk.first + i);
      const unsigned code = (std::abs(value) == upper ? 1U : 0U) | (std::signbit(value) ? 2U : 0U);
      codes[i / 4] |= static_cast<std::byte>(code << (i % 4 * 2));
    }
    to += entries_bytes(count);
    total += count;
  });
  std::memcpy(out, kMagic.data(), kMagic.size());
  store_as(out + detail::kDtypeAt, static_cast<std::uint8_t>(list.format.dtype));
  store_as(out + detail::kFlagsAt, std::uint8_t{0});
  store_as(out + detail::kPhaseAt, static_cast<std::uint16_t>(phase));
  store_as(out + detail::kCountAt, static_cast<std::uint64_t>(total));
}

std::size_t max_packed_bytes(std::size_t elements, std::size_t capacity, std::size_t phase) {
  const std::size_t chunks = chunks_of(elements, phase);
  // Each chunk ends in whole bytes.
  return kTopkHeaderBytes + chunks * (kChunkBytes + 2) +
         entries_bytes(std::min(capacity, elements));
}

Result<std::size_t> unpacked_bytes(std::span<const std::byte> packed,
                                   std::size_t elements,
                                   const TopkFormat& format,
                                   std::size_t phase) {
  const std::size_t chunks = chunks_of(elements, phase);
  const std::size_t entries_at = kTopkHeaderBytes + chunks * kChunkBytes;
  if (packed.size() < entries_at) {
    return make_error(ErrorCode::kPeerFailed,
                      "a packed top-k list of %zu bytes, less than its %zu chunks take",
                      packed.size(),
                      chunks);
  }
  const std::byte* const from = packed.data();
  const auto dtype = load_as<std::uint8_t>(from + detail::kDtypeAt);
  const auto flags = load_as<std::uint8_t>(from + detail::kFlagsAt);
  const auto has_phase = load_as<std::uint16_t>(from + detail::kPhaseAt);
  if (std::memcmp(from, kMagic.data(), kMagic.size()) != 0 || flags != 0 ||
      dtype != static_cast<std::uint8_t>(format.dtype) || has_phase != phase) {
    return make_error(ErrorCode::kPeerFailed,
                      "what should be a packed top-k list of %s at phase %zu begins otherwise",
                      data_type_name(format.dtype),
                      phase);
  }
  std::size_t total = 0;
  std::size_t bytes = entries_at;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    total += count_of(packed, chunk);
    bytes += entries_bytes(count_of(packed, chunk));
  }
  if (load_as<std::uint64_t>(from + detail::kCountAt) != total || total > elements ||
      bytes != packed.size()) {
    return make_error(ErrorCode::kPeerFailed,
                      "a packed top-k list of %zu bytes, whose chunks have %zu entries in %zu bytes"
                      " for %zu elements",
                      packed.size(),
                      total,
                      bytes,
                      elements);
  }
  return list_bytes(elements, total, format, phase);
}

void unpack_list(std::span<const std::byte> packed,
                 std::size_t elements,
                 const TopkFormat& format,
                 std::size_t phase,
                 std::span<std::byte> out) {
  const auto count =
      static_cast<std::size_t>(load_as<std::uint64_t>(packed.data() + detail::kCountAt));
  detail::ListWriter writer(out, elements, count, format, phase);
  const std::size_t chunks = chunks_of(elements, phase);
  const std::byte* from = packed.data() + kTopkHeaderBytes + chunks * kChunkBytes;
  std::size_t in_block = 0;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t entries = count_of(packed, chunk);
    const std::byte* const levels = packed.data() + kTopkHeaderBytes + chunk * kChunkBytes + 2;
    const std::array magnitudes = {bfloat16_to_float(load_as<std::uint16_t>(levels)),
                                   bfloat16_to_float(load_as<std::uint16_t>(levels + 2))};
    const std::byte* const codes = from + offsets_bytes(entries);
    const std::size_t in_chunk = (phase / kTopkChunkElems + chunk) % kChunksInBlock;
    const std::size_t value_bytes = format.value_bytes();
    for (std::size_t i = 0; i < entries; ++i) {
      const std::byte* const pair = from + i / 2 * 3;
      const auto middle = std::to_integer<unsigned>(pair[1]);
      const unsigned offset = i % 2 == 0
                                  ? std::to_integer<unsigned>(pair[0]) | (middle & 0xfU) << 8U
                                  : middle >> 4U | std::to_integer<unsigned>(pair[2]) << 4U;
      const unsigned code = std::to_integer<unsigned>(codes[i / 4]) >> (i % 4 * 2);
      const float magnitude = magnitudes[code & 1U];
      const float value = (code & 2U) != 0 ? -magnitude : magnitude;
      store_as(writer.offsets() + (in_block + i) * sizeof(std::uint16_t),
               static_cast<std::uint16_t>(in_chunk * kTopkChunkElems + offset));
      std::byte* const to = writer.values() + (in_block + i) * value_bytes;
      if (value_bytes == sizeof(float)) {
        store_as(to, value);
      } else {
        store_as(to, float_to_bfloat16(value));
      }
    }
    in_block += entries;
    from += entries_bytes(entries);
    if (in_chunk + 1 == kChunksInBlock || chunk + 1 == chunks) {
      writer.finish_block(in_block);
      in_block = 0;
    }
  }
  writer.finish();
}

}  // namespace lightcc
