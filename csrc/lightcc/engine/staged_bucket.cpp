#include "lightcc/engine/staged_bucket.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "lightcc/engine/compressed_bucket.hpp"
#include "lightcc/engine/staged_pieces.hpp"

namespace lightcc {
namespace {

/// Where tensors begin in a block.
constexpr std::size_t kAlignment = 64;

std::size_t byte_count(const std::vector<std::int64_t>& shape, DataType dtype) {
  return static_cast<std::size_t>(element_count(shape)) * element_size(dtype);
}

std::size_t all_bytes(const std::vector<std::size_t>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::size_t{0});
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
  WholeBucket(Bucket& bucket, const BucketSite& host, Staging& staging)
      : bucket_(bucket), host_(host), staging_(staging) {
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
    StagedPart& part = block_->parts.emplace_back();
    if (tensor.operation != nullptr) {
      const TensorRef& input = tensor.operation->operation.input;
      part.from = static_cast<const std::byte*>(input.data);
      part.device = input.memory.device;
      part.bytes = byte_count(input.shape, input.dtype);
      part.offset = block_->bytes;
      block_->bytes += (part.bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
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
  LIGHTCC_ASSIGN_OR_RETURN(collective_, start_bucket(copies_, host_));
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

/// Compressed where its tensors lie: nothing but lists is copied.
class BucketOnDevices final : public StagedWork {
 public:
  BucketOnDevices(std::unique_ptr<Work> work, std::vector<const TopkKernels*> kernels)
      : kernels_(std::move(kernels)), work_(std::move(work)) {}

  Result<Progress> advance() override { return work_->advance(); }
  bool is_copying() const override {
    return std::ranges::any_of(kernels_,
                               [](const TopkKernels* kernels) { return kernels->is_busy(); });
  }

 private:
  std::vector<const TopkKernels*> kernels_;
  std::unique_ptr<Work> work_;
};

Result<std::unique_ptr<StagedWork>> start_on_devices(Bucket& bucket,
                                                     const BucketSite& host,
                                                     Staging& staging,
                                                     CompressedEntries entries) {
  std::vector<TensorSpan> spans;
  std::vector<const TopkKernels*> kernels;
  for (std::size_t i = 0; i < bucket.tensors.size(); ++i) {
    BucketTensor& tensor = bucket.tensors[i];
    const TensorRef& input = tensor.operation->operation.input;
    LIGHTCC_ASSIGN_OR_RETURN(std::byte* const out,
                             output_for(tensor, tensor.signature().shape, [&](std::size_t bytes) {
                               return staging.allocate(bytes, input.memory.device);
                             }));
    spans.push_back({.in = static_cast<const std::byte*>(input.data),
                     .out = out,
                     .count = entries[i]->elements});
    kernels.push_back(entries[i]->kernels);
  }
  LIGHTCC_ASSIGN_OR_RETURN(
      std::unique_ptr<Work> work,
      start_compressed(bucket,
                       spans,
                       reduction_of(bucket.tensors.front().signature(), host.members.size()),
                       host,
                       std::move(entries)));
  return std::unique_ptr<StagedWork>(
      std::make_unique<BucketOnDevices>(std::move(work), std::move(kernels)));
}

}  // namespace

Result<std::unique_ptr<StagedWork>> start_staged_bucket(Bucket& bucket,
                                                        const BucketSite& host,
                                                        Staging& staging,
                                                        std::size_t piece_bytes) {
  const std::optional<Reduction> reduction = elementwise_reduction(bucket, host);
  if (reduction.has_value() && piece_bytes > 0 && byte_count(bucket) > piece_bytes) {
    return start_in_pieces(bucket, *reduction, host, staging, piece_bytes);
  }
  if (auto entries = entries_on_devices(bucket, host); entries.has_value()) {
    return start_on_devices(bucket, host, staging, std::move(*entries));
  }
  const BucketTensor& first = bucket.tensors.front();
  if (piece_bytes > 0 && first.operation != nullptr) {
    const OpType op = first.signature().op;
    if (op == OpType::kBroadcast && byte_count(bucket) > piece_bytes) {
      return start_broadcast_in_pieces(bucket, host, staging, piece_bytes);
    }
    if (op == OpType::kAllgather && all_bytes(gathered_bytes(first)) > piece_bytes) {
      return start_allgather_in_pieces(bucket, host, staging, piece_bytes);
    }
  }
  return std::unique_ptr<StagedWork>(std::make_unique<WholeBucket>(bucket, host, staging));
}

}  // namespace lightcc
