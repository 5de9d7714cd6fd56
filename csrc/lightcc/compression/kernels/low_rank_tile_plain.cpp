// Low-rank compression without any instruction beyond the baseline: what other levels are held to.
#include <cstddef>  // IWYU pragma: keep (for the loops that are included)
#include <cstdint>  // IWYU pragma: keep (likewise)

#include "lightcc/compression/kernels/low_rank_tile_job.hpp"

namespace lightcc {
namespace {

constexpr std::size_t kVectorBytes = 16;
#include "lightcc/compression/kernels/low_rank_tile_body.inl"

}  // namespace

bool detail::low_rank_project_plain(const LowRankTile& tile) {
  return tile.wide ? project<double>(tile) : project<float>(tile);
}

void detail::low_rank_collect_plain(const LowRankTile& tile) {
  tile.wide ? collect<double>(tile) : collect<float>(tile);
}

void detail::low_rank_split_plain(const LowRankTile& tile) {
  tile.wide ? split<double>(tile) : split<float>(tile);
}

}  // namespace lightcc
