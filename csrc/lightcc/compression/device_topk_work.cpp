// Tensors go through the kernels in the parts of tensor_batches.hpp, one part after another. Each
// part is one exchange: what travels has a fixed size, so there is nothing to be asked before.
#include "lightcc/compression/device_topk_work.hpp"

#include <cstddef>
#include <utility>

#include "lightcc/collectives/sequence.hpp"
#include "lightcc/compression/tensor_batches.hpp"
#include "lightcc/compression/topk_item.hpp"

namespace lightcc {

std::unique_ptr<Work> make_device_topk_allreduce(DeviceTopk& device,
                                                 std::vector<CompressedTensor> tensors,
                                                 const CompressedJob& job) {
  std::vector<std::size_t> elements;
  const auto items = std::make_shared<std::vector<std::unique_ptr<TopkItem>>>();
  for (CompressedTensor& tensor : tensors) {
    elements.push_back(tensor.span.count);
    items->push_back(std::make_unique<TopkItem>(std::move(tensor), job));
  }
  const std::vector<TensorBatch> parts = cut_for_kernels(elements);
  std::vector<Sequence::Start> starts;
  for (std::size_t i = 0; i < items->size(); i = parts[i].end) {
    starts.emplace_back([&device, items, part = parts[i]]() -> Result<std::unique_ptr<Work>> {
      std::vector<DeviceTopkStep> steps;
      for (std::size_t at = part.first; at < part.end; ++at) {
        LIGHTCC_RETURN_IF_ERROR((*items)[at]->begin_on_device(steps));
      }
      return device.start(std::move(steps));
    });
    starts.emplace_back([items, part = parts[i]] {
      for (std::size_t at = part.first; at < part.end; ++at) {
        (*items)[at]->end_on_device();
        (*items)[at].reset();
      }
      return std::unique_ptr<Work>();
    });
  }
  return std::make_unique<Sequence>(std::move(starts));
}

}  // namespace lightcc
