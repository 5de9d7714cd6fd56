#include "lightcc/engine/staged/staged_shards.hpp"

#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/sequence.hpp"
#include "lightcc/engine/partial_group.hpp"

namespace lightcc {
namespace {

/// The ranks of a block, by devices; what is on the host goes between them there.
class ShardsOfBlock : public PartialGroup {
 public:
  int rank() const override { return block_->rank(); }
  int size() const override { return block_->size(); }

  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    return host_->status.ok() ? host_->levels.intra->allgather(in, out, std::move(bytes))
                              : std::make_unique<FailedWork>(host_->status);
  }

 protected:
  ShardsOfBlock(const char* what, std::shared_ptr<GridState> host, std::unique_ptr<Group> block)
      : PartialGroup(what), host_(std::move(host)), block_(std::move(block)) {}

  Group& block() const { return *block_; }

 private:
  std::shared_ptr<GridState> host_;
  std::unique_ptr<Group> block_;
};

/// Nothing comes to the host but what is there.
class DeviceShards final : public ShardsOfBlock {
 public:
  DeviceShards(std::shared_ptr<GridState> host, std::unique_ptr<Group> block)
      : ShardsOfBlock(
            "shards of a device are scattered and gathered", std::move(host), std::move(block)) {}

  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    return block().reduce_scatter_bucket(std::move(tensors), std::move(counts), reduction);
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    return block().allgather_bucket(std::move(tensors), std::move(counts), dtype);
  }
};

class StagedShards final : public ShardsOfBlock {
 public:
  StagedShards(std::shared_ptr<GridState> host,
               std::unique_ptr<Group> block,
               Staging& staging,
               std::int32_t device)
      : ShardsOfBlock("staged shards are scattered and gathered, with one tensor for each member",
                      std::move(host),
                      std::move(block)),
        staging_(staging),
        device_(device) {}

  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    if (!is_one_for_each_member(tensors, counts)) {
      return refuse();
    }
    TensorSpan& own = tensors[static_cast<std::size_t>(rank())];
    auto shard = shard_at(own.out, own.count * element_size(reduction.dtype));
    // Inputs stay what they are, so the result lies beside them.
    const Result<std::byte*> beside = memory_for(shard->bytes);
    if (!beside.ok()) {
      return std::make_unique<FailedWork>(beside.status());
    }
    own.out = *beside;
    shard->parts.front().from = own.out;
    std::vector<Sequence::Start> steps;
    steps.emplace_back([this, tensors = std::move(tensors), counts = std::move(counts), reduction] {
      return block().reduce_scatter_bucket(tensors, counts, reduction);
    });
    steps.emplace_back([this, shard = std::move(shard)] { return staging_.copy_to_host(shard); });
    return std::make_unique<Sequence>(std::move(steps));
  }

  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    if (!is_one_for_each_member(tensors, counts)) {
      return refuse();
    }
    TensorSpan& own = tensors[static_cast<std::size_t>(rank())];
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): it is copied from there.
    auto shard = shard_at(const_cast<std::byte*>(own.in), own.count * element_size(dtype));
    if (own.out == nullptr) {
      const Result<std::byte*> beside = memory_for(shard->bytes);
      if (!beside.ok()) {
        return std::make_unique<FailedWork>(beside.status());
      }
      own.out = *beside;
    }
    own.in = own.out;
    shard->parts.front().to = own.out;
    std::vector<Sequence::Start> steps;
    steps.emplace_back([this, shard = std::move(shard)] { return staging_.copy_to_device(shard); });
    steps.emplace_back([this, tensors = std::move(tensors), counts = std::move(counts), dtype] {
      return block().allgather_bucket(tensors, counts, dtype);
    });
    return std::make_unique<Sequence>(std::move(steps));
  }

 private:
  bool is_one_for_each_member(const std::vector<TensorSpan>& tensors,
                              const std::vector<std::size_t>& counts) const {
    return tensors.size() == counts.size() && counts.size() == static_cast<std::size_t>(size());
  }

  /// The own shard, of which `host` is the copy in host memory.
  std::shared_ptr<StagedBlock> shard_at(std::byte* host, std::size_t bytes) const {
    auto block = std::make_shared<StagedBlock>();
    block->parts.push_back({.from = nullptr, .to = nullptr, .device = device_, .bytes = bytes});
    block->bytes = bytes;
    block->host = {std::shared_ptr<std::byte>(), host};  // Whoever asks keeps it.
    return block;
  }

  /// Memory of the GPU, until the next call. Only one Work uses it at a time.
  Result<std::byte*> memory_for(std::size_t bytes) {
    if (memory_ == nullptr || memory_->size_bytes() < bytes) {
      LIGHTCC_ASSIGN_OR_RETURN(memory_, staging_.allocate(std::bit_ceil(bytes), device_));
    }
    return memory_->data();
  }

  Staging& staging_;
  std::int32_t device_;
  std::shared_ptr<OutputBuffer> memory_;
};

}  // namespace

std::unique_ptr<Group> make_staged_shards(std::shared_ptr<GridState> host,
                                          std::unique_ptr<Group> block,
                                          Staging& staging,
                                          std::int32_t device) {
  return std::make_unique<StagedShards>(std::move(host), std::move(block), staging, device);
}

std::unique_ptr<Group> make_device_shards(std::shared_ptr<GridState> host,
                                          std::unique_ptr<Group> block) {
  return std::make_unique<DeviceShards>(std::move(host), std::move(block));
}

}  // namespace lightcc
