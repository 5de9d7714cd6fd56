// A top-k compressed all-reduce whose lists go from device to device. (device_topk.hpp)
#pragma once

#include <memory>
#include <vector>

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/compressed_item.hpp"
#include "lightcc/compression/device_topk.hpp"

namespace lightcc {

/// `tensors` are as those of make_compressed_allreduce(), and all travel as lists
/// (TopkExchange::kLists). Bits are those of that. `block`, of the tensors' memory, scatters and
/// gathers shards; null: blocks have one member. Both outlive the Work.
std::unique_ptr<Work> make_device_topk_allreduce(DeviceTopk& device,
                                                 Group* block,
                                                 std::vector<CompressedTensor> tensors,
                                                 const CompressedJob& job);

}  // namespace lightcc
