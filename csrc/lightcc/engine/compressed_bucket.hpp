// Compressed operations of a bucket: where they run, and with which residual of each tensor.
//
// Top-k of tensors on devices runs there where lists travel (TopkExchange::kLists), and dense
// shards do not come to the host for another reason. All else runs in host memory, with the same
// bits and the same messages, so each rank chooses for itself.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/residual/residual_store.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// Steps that this rank has made of a compressed tensor, by the residual of it; 0 where that
/// begins anew.
std::uint64_t steps_made(const Signature& signature,
                         const GridPosition& position,
                         const ResidualStore& residuals);

/// Starts a compressed all-reduce on the devices of its tensors, with outputs there. Null: it is to
/// run in host memory, and the log has said once why. Errors: of output_for(). May block at a
/// tensor's first time, for memory.
Result<std::unique_ptr<Work>> start_compressed_on_devices(Bucket& bucket, const BucketSite& site);

/// Starts one in host memory. Errors: kSystem, there is no memory for the residual.
Result<std::unique_ptr<Work>> start_compressed(const Bucket& bucket,
                                               const std::vector<TensorSpan>& spans,
                                               const Reduction& reduction,
                                               const BucketSite& site);

/// An all-gather of `in`, and a reduce-scatter of a bucket's only tensor, both in host memory.
/// Errors: kSystem, there is no memory for the residual.
Result<std::unique_ptr<Work>> start_compressed_allgather(const BucketTensor& tensor,
                                                         const std::byte* in,
                                                         std::byte* out,
                                                         const BucketSite& site);
Result<std::unique_ptr<Work>> start_compressed_scatter(const Bucket& bucket,
                                                       const std::byte* in,
                                                       std::byte* out,
                                                       const Reduction& reduction,
                                                       const BucketSite& site);

}  // namespace lightcc
