// A top-k compressed all-reduce whose lists go from device to device. (device_topk.hpp)
#pragma once

#include <memory>
#include <vector>

#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/compressed_item.hpp"
#include "lightcc/compression/device_topk.hpp"

namespace lightcc {

/// `tensors` are as those of make_compressed_allreduce(), in blocks of one member, and all travel
/// as lists (TopkExchange::kLists). Bits are those of that. `device` outlives the Work.
std::unique_ptr<Work> make_device_topk_allreduce(DeviceTopk& device,
                                                 std::vector<CompressedTensor> tensors,
                                                 const CompressedJob& job);

}  // namespace lightcc
