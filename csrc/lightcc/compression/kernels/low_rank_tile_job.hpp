// What low_rank_state.cpp hands to the file of one SIMD level. See low_rank_tile.hpp for what it
// means.
//
// The rules of collectives/kernels/reduce_job.hpp hold here, too: the files of the AVX levels
// define nothing that the linker might share with others. The test
// simd_kernels_define_no_weak_symbols holds the object files to it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/base/types.hpp"

namespace lightcc {

inline constexpr std::size_t kLowRankTileRows = 8;
inline constexpr std::size_t kLowRankTileCols = 512;
/// Vectors of the right factor lie in a multiple of so many bytes, zeros behind them.
inline constexpr std::size_t kLowRankAlignment = 64;

/// A piece of a matrix, of at most 8 rows and 512 columns, and what goes with it of both factors.
/// Lanes are float, or double where `wide` is set. Strides are in lanes.
struct LowRankTile {
  const std::byte* input = nullptr;  ///< Lanes, any alignment; null: zeros.
  std::size_t input_stride = 0;
  std::byte* residual = nullptr;  ///< Lanes, aligned as such.
  std::size_t residual_stride = 0;
  std::size_t rows = 0;
  std::size_t cols = 0;
  double scale = 1.0;  ///< Of the input.
  bool wide = false;

  std::size_t rank = 0;  ///< Vectors of both factors, 1 .. 64.
  std::byte* left = nullptr;
  std::size_t left_stride = 0;
  std::byte* right = nullptr;  ///< Aligned to 64 bytes, and so is its stride.
  std::size_t right_stride = 0;

  // Of low_rank_split() alone.
  const std::byte* right_sum = nullptr;  ///< As `right`.
  std::byte* out = nullptr;              ///< Lanes, any alignment; null: not wanted.
  std::size_t out_stride = 0;
  double postscale = 1.0;
};

namespace detail {

/// The AVX functions exist on x86-64 only, and may be called only where the CPU has the level.
bool low_rank_project_plain(const LowRankTile& tile);
bool low_rank_project_avx2(const LowRankTile& tile);
bool low_rank_project_avx512(const LowRankTile& tile);
void low_rank_collect_plain(const LowRankTile& tile);
void low_rank_collect_avx2(const LowRankTile& tile);
void low_rank_collect_avx512(const LowRankTile& tile);
void low_rank_split_plain(const LowRankTile& tile);
void low_rank_split_avx2(const LowRankTile& tile);
void low_rank_split_avx512(const LowRankTile& tile);

}  // namespace detail
}  // namespace lightcc
