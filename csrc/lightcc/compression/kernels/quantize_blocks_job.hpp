// What quantize.cpp hands to the file of one SIMD level. See quantize_blocks.hpp for what it means.
//
// The rules of collectives/kernels/reduce_job.hpp hold here, too: the files of the AVX levels
// define nothing that the linker might share with others. The test
// simd_kernels_define_no_weak_symbols holds the object files to it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/base/types.hpp"

namespace lightcc {

/// Elements that share a scale.
inline constexpr std::size_t kQuantizedBlockElems = 128;

/// Whole blocks, from lanes to scales and codes. Lanes are float, or double where `wide` is set.
struct QuantizeJob {
  const std::byte* input = nullptr;     ///< Lanes, any alignment.
  const std::byte* residual = nullptr;  ///< Lanes, aligned as such; null: zeros.
  std::byte* next = nullptr;            ///< The same: what the codes do not say. May be `residual`.
  std::byte* scales = nullptr;          ///< 2 bytes for each block, any alignment.
  std::byte* codes = nullptr;           ///< 16 bytes for each block and bit.
  std::size_t blocks = 0;
  bool wide = false;
  unsigned bits = 8;
};

/// The way back. Lanes are written, or added to.
struct DequantizeJob {
  const std::byte* scales = nullptr;
  const std::byte* codes = nullptr;
  std::byte* lanes = nullptr;  ///< Aligned as such.
  std::size_t blocks = 0;
  bool wide = false;
  unsigned bits = 8;
  bool add = false;
};

namespace detail {

/// False: a lane of input + residual is no finite number; what was written means nothing then. The
/// AVX functions exist on x86-64 only, and may be called only where the CPU has the level.
bool quantize_blocks_plain(const QuantizeJob& job);
bool quantize_blocks_avx2(const QuantizeJob& job);
bool quantize_blocks_avx512(const QuantizeJob& job);
void dequantize_blocks_plain(const DequantizeJob& job);
void dequantize_blocks_avx2(const DequantizeJob& job);
void dequantize_blocks_avx512(const DequantizeJob& job);

}  // namespace detail
}  // namespace lightcc
