// What select_block() hands to the file of one SIMD level. See topk_block.hpp for what it all
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

/// One pass over at most 64 Ki elements. Lanes are float, or double for float64.
struct TopkBlockJob {
  const std::byte* shard = nullptr;     ///< Elements of `dtype`, any alignment.
  const std::byte* residual = nullptr;  ///< Lanes, aligned to 64 bytes where `stream` is set.
  std::byte* next_residual = nullptr;   ///< The same; null: accumulate only, see `values`.
  const std::byte* velocity = nullptr;  ///< Lanes, or null: no momentum.
  std::byte* next_velocity = nullptr;
  std::size_t count = 0;
  DataType dtype = DataType::kFloat32;
  double momentum = 0.0;
  std::uint64_t threshold = 0;  ///< Magnitude, as the bits of a lane without its sign.
  bool stream = false;          ///< Write residual and velocity past the caches.
  /// Where selected elements are. Room for count + kTopkBlockSlack.
  std::uint16_t* offsets = nullptr;
  /// Lanes: acc of selected elements, or of all when accumulating. Room for count +
  /// kTopkBlockSlack.
  std::byte* values = nullptr;
};

struct TopkBlockResult {
  std::size_t selected = 0;
  bool non_finite = false;
};

/// Whole vectors are stored at the end of `offsets` and `values`.
inline constexpr std::size_t kTopkBlockSlack = 16;

namespace detail {

/// The AVX functions exist on x86-64 only, and may be called only where the CPU has the level.
TopkBlockResult topk_block_plain(const TopkBlockJob& job);
TopkBlockResult topk_block_avx2(const TopkBlockJob& job);
TopkBlockResult topk_block_avx512(const TopkBlockJob& job);

}  // namespace detail
}  // namespace lightcc
