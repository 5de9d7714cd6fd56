// Low-rank compression with AVX-512. Compiled with flags of its own: see low_rank_tile_job.hpp for
// what must not be done here.
#if defined(__x86_64__)

#include <cstddef>  // IWYU pragma: keep (for the loops that are included)
#include <cstdint>  // IWYU pragma: keep (likewise)

#include "lightcc/compression/kernels/low_rank_tile_job.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kVectorBytes = 64;
#include "lightcc/compression/kernels/low_rank_tile_body.inl"

}  // namespace

bool detail::low_rank_project_avx512(const LowRankTile& tile) {
  return tile.wide ? project<double>(tile) : project<float>(tile);
}

void detail::low_rank_collect_avx512(const LowRankTile& tile) {
  tile.wide ? collect<double>(tile) : collect<float>(tile);
}

void detail::low_rank_split_avx512(const LowRankTile& tile) {
  tile.wide ? split<double>(tile) : split<float>(tile);
}

}  // namespace lightcc

#endif
