#include "lightcc/engine/staged_bucket.hpp"

#include <utility>
#include <vector>

namespace lightcc {
namespace {

std::size_t byte_count(const std::vector<std::int64_t>& shape, DataType dtype) {
  return static_cast<std::size_t>(element_count(shape)) * element_size(dtype);
}

bool has_result_of_its_shape(OpType op) {
  return op == OpType::kAllreduce || op == OpType::kBroadcast || op == OpType::kRecv;
}

/// What the host's plane runs in the place of `operation`, whose input has a copy.
InFlight copy_of(const InFlight& original, const StagedTensor& copy) {
  InFlight made;
  made.operation.request = original.operation.request;
  made.operation.input = original.operation.input;
  made.operation.input.memory = {};
  made.operation.input.data = copy.host.get();
  if (has_result_of_its_shape(original.signature().op)) {
    made.operation.output = made.operation.input;
  }
  return made;
}

}  // namespace

StagedWork::StagedWork(Bucket& bucket, const BucketSite& host, Staging& staging)
    : bucket_(bucket), host_(host), staging_(staging) {
  begin_inputs();
}

void StagedWork::begin_inputs() {
  tensors_ = std::make_shared<StagedTensors>();
  for (const BucketTensor& tensor : bucket_.tensors) {
    StagedTensor& staged = tensors_->emplace_back();
    if (tensor.operation != nullptr) {
      const TensorRef& input = tensor.operation->operation.input;
      staged.data = static_cast<std::byte*>(input.data);
      staged.device = input.memory.device;
      staged.bytes = byte_count(input.shape, input.dtype);
    }
  }
  copying_ = staging_.copy_to_host(tensors_);
}

Status StagedWork::begin_collective() {
  copies_.process_set = bucket_.process_set;
  copies_.lane = bucket_.lane;
  operations_.reserve(bucket_.tensors.size());  // They are pointed to.
  for (std::size_t i = 0; i < bucket_.tensors.size(); ++i) {
    const BucketTensor& original = bucket_.tensors[i];
    BucketTensor& copy = copies_.tensors.emplace_back();
    copy.agreed = original.agreed;
    if (original.operation != nullptr) {
      copy.operation = &operations_.emplace_back(copy_of(*original.operation, (*tensors_)[i]));
    }
  }
  LIGHTCC_ASSIGN_OR_RETURN(collective_, start_bucket(copies_, host_));
  return {};
}

Status StagedWork::begin_outputs() {
  for (std::size_t i = 0; i < bucket_.tensors.size(); ++i) {
    BucketTensor& original = bucket_.tensors[i];
    BucketTensor& copy = copies_.tensors[i];
    StagedTensor& staged = (*tensors_)[i];
    staged.data = nullptr;
    if (original.operation == nullptr || original.operation->signature().op == OpType::kSend) {
      continue;
    }
    original.outcome.received_splits = std::move(copy.outcome.received_splits);
    if (copy.outcome.output != nullptr) {
      staged.host = {copy.outcome.output, copy.outcome.output->data()};
    }
    const std::int32_t device = staged.device;
    LIGHTCC_ASSIGN_OR_RETURN(
        staged.data, output_for(original, std::move(copy.outcome.shape), [&](std::size_t bytes) {
          return staging_.allocate(bytes, device);
        }));
    staged.bytes = byte_count(original.outcome.shape, original.signature().dtype);
  }
  copying_ = staging_.copy_to_device(tensors_);
  return {};
}

Result<Progress> StagedWork::advance() {
  while (stage_ != Stage::kDone) {
    std::unique_ptr<Work>& work = stage_ == Stage::kCollective ? collective_ : copying_;
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, work->advance());
    if (progress != Progress::kDone) {
      return progress;
    }
    work.reset();
    if (stage_ == Stage::kInputs) {
      LIGHTCC_RETURN_IF_ERROR(begin_collective());
      stage_ = Stage::kCollective;
    } else if (stage_ == Stage::kCollective) {
      LIGHTCC_RETURN_IF_ERROR(begin_outputs());
      stage_ = Stage::kOutputs;
    } else {
      stage_ = Stage::kDone;
    }
  }
  return Progress::kDone;
}

}  // namespace lightcc
