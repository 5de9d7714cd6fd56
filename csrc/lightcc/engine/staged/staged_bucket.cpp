#include "lightcc/engine/staged/staged_bucket.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include "lightcc/collectives/sequence.hpp"

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

using Started = Result<std::unique_ptr<Work>>;

/// All of it at once.
class WholeBucket {
 public:
  WholeBucket(Plane& host, Bucket& bucket, const Route& route, const BucketSite& site)
      : host_(host), bucket_(bucket), route_(route), site_(site), staging_(*site.devices) {
    route_.carrier = Carrier::kHost;  // The copies are in its memory.
    site_.devices = nullptr;
  }

  Started copy_inputs();
  Started run();
  Started copy_outputs();

 private:
  Plane& host_;
  Bucket& bucket_;
  Route route_;      // The copies take this,
  BucketSite site_;  // here.
  Staging& staging_;
  std::vector<InFlight> operations_;  // The copies are theirs.
  Bucket copies_;
  std::shared_ptr<StagedBlock> block_ = std::make_shared<StagedBlock>();  // A part for each tensor.
};

Started WholeBucket::copy_inputs() {
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
  return staging_.copy_to_host(block_);
}

Started WholeBucket::run() {
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
  return host_.start(copies_, route_, site_);
}

Started WholeBucket::copy_outputs() {
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
  return staging_.copy_to_device(block_);
}

}  // namespace

Result<std::unique_ptr<Work>> start_whole(Plane& host,
                                          Bucket& bucket,
                                          const Route& route,
                                          const BucketSite& site) {
  const auto whole = std::make_shared<WholeBucket>(host, bucket, route, site);
  return std::unique_ptr<Work>(std::make_unique<Sequence>(
      std::vector<Sequence::Start>{[whole] { return whole->copy_inputs(); },
                                   [whole] { return whole->run(); },
                                   [whole] { return whole->copy_outputs(); }}));
}

}  // namespace lightcc
