// The tensors of a batch between blocks, in as many operations as one tensor takes. (Essay:
// compressed_allreduce.cpp.)
#pragma once

#include <memory>
#include <span>

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/topk/topk_item.hpp"

namespace lightcc {

/// `items` are compressed, the same ones in the same order on all members of `inter`. What they
/// point to outlives the Work. Errors: kPeerFailed for what a peer sent; of the kernels and of
/// `inter`.
std::unique_ptr<Work> make_topk_exchange(std::span<TopkItem* const> items, Group& inter);

}  // namespace lightcc
