#include "lightcc/engine/staged/staged_bucket.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include "lightcc/engine/compressed_bucket.hpp"
#include "lightcc/engine/staged/staged_pieces.hpp"

namespace lightcc {
namespace {

std::size_t byte_count(const std::vector<std::int64_t>& shape, DataType dtype) {
  return static_cast<std::size_t>(element_count(shape)) * element_size(dtype);
}

bool has_result_of_its_shape(OpType op) {
  return op == OpType::kAllreduce || op == OpType::kBroadcast || op == OpType::kRecv;
}

/// What the host's plane runs instead of `original`, whose input has a copy.
InFlight copy_of(const InFlight& original, std::byte* copy) {
  InFlight made;
  made.operation.request = original.operation.request;
  made.operation.input = original.operation.input;
  made.operation.input.memory = {};
  made.operation.input.data = copy;
  if (has_result_of_its_shape(original.signature().op)) {
    made.operation.output = made.operation.input;
  }
  return made;
}

/// All of it at once.
class WholeBucket final : public StagedWork {
 public:
  WholeBucket(Bucket& bucket, Algorithm algorithm, const BucketSite& site)
      : bucket_(bucket), algorithm_(algorithm), host_(site), staging_(*site.devices) {
    host_.devices = nullptr;  // That of the copies.
    begin_inputs();
  }

  Result<Progress> advance() override;
  bool is_copying() const override { return copying_ != nullptr; }

 private:
  void begin_inputs();
  Status begin_collective();
  Status begin_outputs();

  enum class Stage : std::uint8_t { kInputs, kCollective, kOutputs, kDone };

  Bucket& bucket_;
  Algorithm algorithm_;
  BucketSite host_;
  Staging& staging_;
  std::vector<InFlight> operations_;  // Of the copies.
  Bucket copies_;
  std::shared_ptr<StagedBlock> block_ = std::make_shared<StagedBlock>();  // A part for each tensor.
  Stage stage_ = Stage::kInputs;
  std::unique_ptr<Work> collective_;  // Goes before what it works on.
  std::unique_ptr<Work> copying_;
};

void WholeBucket::begin_inputs() {
  for (const BucketTensor& tensor : bucket_.tensors) {
    StagedPart part;
    if (tensor.operation != nullptr) {
      const TensorRef& input = tensor.operation->operation.input;
      part.from = static_cast<const std::byte*>(input.data);
      part.device = input.memory.device;
      part.bytes = byte_count(input.shape, input.dtype);
    }
    block_->add(part);
  }
  copying_ = staging_.copy_to_host(block_);
}

Status WholeBucket::begin_collective() {
  copies_.process_set = bucket_.process_set;
  copies_.lane = bucket_.lane;
  operations_.reserve(bucket_.tensors.size());  // They are pointed to.
  for (std::size_t i = 0; i < bucket_.tensors.size(); ++i) {
    const BucketTensor& original = bucket_.tensors[i];
    BucketTensor& copy = copies_.tensors.emplace_back();
    copy.agreed = original.agreed;
    copy.steps = original.steps;
    if (original.operation != nullptr) {
      std::byte* const data = block_->at(block_->parts[i]);
      copy.operation = &operations_.emplace_back(copy_of(*original.operation, data));
    }
  }
  LIGHTCC_ASSIGN_OR_RETURN(collective_, start_bucket(copies_, algorithm_, host_));
  return {};
}

Status WholeBucket::begin_outputs() {
  for (std::size_t i = 0; i < bucket_.tensors.size(); ++i) {
    BucketTensor& original = bucket_.tensors[i];
    BucketTensor& copy = copies_.tensors[i];
    StagedPart& part = block_->parts[i];
    if (original.operation == nullptr || original.operation->signature().op == OpType::kSend) {
      continue;
    }
    original.outcome.received_splits = std::move(copy.outcome.received_splits);
    if (copy.outcome.output != nullptr) {  // It is the bucket's only tensor.
      block_->host = {copy.outcome.output, copy.outcome.output->data()};
    }
    const std::int32_t device = part.device;
    LIGHTCC_ASSIGN_OR_RETURN(
        part.to, output_for(original, std::move(copy.outcome.shape), [&](std::size_t bytes) {
          return staging_.allocate(bytes, device);
        }));
    part.bytes = byte_count(original.outcome.shape, original.signature().dtype);
  }
  copying_ = staging_.copy_to_device(block_);
  return {};
}

Result<Progress> WholeBucket::advance() {
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

}  // namespace

Result<std::unique_ptr<StagedWork>> start_staged_bucket(Bucket& bucket,
                                                        const Route& route,
                                                        const BucketSite& site) {
  if (route.algorithm == Algorithm::kCompressed) {
    LIGHTCC_ASSIGN_OR_RETURN(std::unique_ptr<StagedWork> work,
                             start_compressed_on_devices(bucket, site));
    if (work != nullptr) {
      return work;
    }
  }
  if (route.piece_bytes > 0) {
    return start_in_pieces(bucket, site, route.piece_bytes);
  }
  return std::unique_ptr<StagedWork>(std::make_unique<WholeBucket>(bucket, route.algorithm, site));
}

}  // namespace lightcc
