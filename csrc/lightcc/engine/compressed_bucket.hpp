// Compressed all-reduces of a bucket: where they run, and with what is kept back of each tensor.
//
// Top-k of tensors on devices runs there where lists travel (TopkExchange::kLists), and dense
// shards do not come to the host for another reason. All else runs in host memory, with the same
// bits and the same messages, so each rank chooses for itself.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/grid_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/topk_store.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// Steps that this rank has made of a compressed tensor, by what it keeps back of it; 0 where that
/// begins anew.
std::uint64_t steps_made(const Signature& signature,
                         const GridPosition& position,
                         const TopkStore& topk);

/// Entries of a bucket's tensors.
using CompressedEntries = std::vector<std::shared_ptr<TopkEntry>>;

/// Those on the devices of the tensors, for a bucket that is compressed there; none: it is
/// compressed in host memory, and the log has said once why. May block at a tensor's first time,
/// for memory.
std::optional<CompressedEntries> entries_on_devices(const Bucket& bucket, const BucketSite& site);

/// Starts a compressed all-reduce. `entries`: on devices, where `spans` lie; none: in host memory.
/// Errors: kSystem, there is no memory for what is kept back.
Result<std::unique_ptr<Work>> start_compressed(const Bucket& bucket,
                                               const std::vector<TensorSpan>& spans,
                                               const Reduction& reduction,
                                               const BucketSite& site,
                                               std::optional<CompressedEntries> entries);

}  // namespace lightcc
