// Where the parts of a list lie: docs/inside/wire-format.md as code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lightcc/compression/topk/topk_list.hpp"

namespace lightcc::detail {

inline constexpr std::array kListMagic = {'L', 'T', 'K', '\1'};  // The last byte is the version.
inline constexpr std::size_t kDtypeAt = 4;
inline constexpr std::size_t kFlagsAt = 5;
inline constexpr std::size_t kPhaseAt = 6;
inline constexpr std::size_t kCountAt = 8;
static_assert(kCountAt + sizeof(std::uint64_t) == kTopkHeaderBytes);

inline constexpr unsigned kFlagNonFinite = 1;
inline constexpr unsigned kFlagScales = 2;

/// Offsets in bytes of a list with so many blocks and entries.
struct ListLayout {
  ListLayout(std::size_t num_blocks, std::size_t count, const TopkFormat& format)
      : exponents(counts + num_blocks * sizeof(std::uint32_t)),
        offsets(exponents + (format.has_scales() ? num_blocks * sizeof(std::int16_t) : 0)),
        values(offsets + count * sizeof(std::uint16_t)),
        end(values + count * format.value_bytes()) {}

  std::size_t counts = kTopkHeaderBytes;
  std::size_t exponents;
  std::size_t offsets;
  std::size_t values;
  std::size_t end;
};

}  // namespace lightcc::detail
