// A compressed all-gather: codes are gathered, and every rank decodes all of them.
//
// Each rank encodes its row once. The codes travel as the bytes of an all-gather, which on two
// levels cross once to each block (grid/grid_gather.cpp). Everybody decodes the same bytes, the own
// ones too, so the result has the same bits on all ranks. Nothing is kept back: the next gather
// begins from exact rows.
//
// A row that has a NaN or an infinity is NaN everywhere.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/residual/residual_store.hpp"

namespace lightcc {

/// The same on all ranks, but for the counters.
struct CompressedGatherJob {
  DataType dtype = DataType::kFloat32;
  CompressionSpec spec;    ///< Quantised.
  std::size_t blocks = 1;  ///< That codes cross to; for the counters, which outlive the Work.
  CompressionCounters* counters = nullptr;
};

/// `in` has elements[rank] elements, and may lie in `out`, which has all of them, or is null: the
/// result is not wanted. `group` outlives the Work. Errors: of its all-gather; kPeerFailed for
/// codes that are none.
std::unique_ptr<Work> make_compressed_allgather(Group& group,
                                                const std::byte* in,
                                                std::byte* out,
                                                const std::vector<std::size_t>& elements,
                                                const CompressedGatherJob& job);

}  // namespace lightcc
