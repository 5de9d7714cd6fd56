// One tensor on its way through a compressed all-reduce, as far as all compressors do the same:
// shards within the block, the residual, and what happens to a step that is skipped. (Essay:
// compressed_allreduce.cpp.)
//
// A step has four parts. The members of a block prepare their shards, each encodes its own, and the
// blocks combine what they encoded. In the end the step is committed, or rolled back on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/exchange/kernel_calls.hpp"
#include "lightcc/compression/exchange/member_spans.hpp"
#include "lightcc/compression/exchange/tensor_batches.hpp"
#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/residual/residual_store.hpp"
#include "lightcc/compression/residual/shard.hpp"

namespace lightcc {

/// Host memory, not a vector, which would write zeros first.
using CompressedBuffer = std::unique_ptr<std::byte[]>;  // NOLINT(modernize-avoid-c-arrays)
/// The same, kept by all tensors that have a part of it.
using SharedBuffer = std::shared_ptr<std::byte[]>;  // NOLINT(modernize-avoid-c-arrays)
/// It has at least one byte, and so an address.
CompressedBuffer make_compressed_buffer(std::size_t bytes);

struct CompressedTensor {
  TensorSpan span;
  std::shared_ptr<TensorResidual> entry;  ///< For a tensor of as many elements.
};

/// What the tensors of one bucket have in common.
struct CompressedJob {
  Reduction reduction;  ///< kSum.
  CompressionSpec spec;
  CompressionCounters* counters = nullptr;  ///< Outlives the Work, as kernels do.
  /// Members of a block pass merged shards on to each other, never lists: they have a group of the
  /// tensors' memory for that. The same on all ranks.
  bool gathers_shards = false;
  /// The tensors are in other memory than their shards, which lie apart in that of the kernels.
  /// Such shards are gathered.
  bool shards_apart = false;
  bool on_device = false;  ///< A GPU selects elements.
  /// Tensors are exchanged together until they have so many. The same on all ranks.
  std::size_t exchange_elements = kExchangeElements;
};

/// By what the sum of what blocks send is multiplied: what is left of the factors after a block's
/// own sum, if there was one.
double late_factor(const Reduction& reduction, const GridPosition& position);

/// Its parts run in the order in which they are declared, each when the one before is done. Errors:
/// kPeerFailed for what a peer sent, kInvalidArgument or kInternal for what the compression
/// refuses; kSystem when memory is short.
class CompressedItem {
 public:
  CompressedItem(CompressedTensor tensor, const CompressedJob& job);
  CompressedItem(const CompressedItem&) = delete;
  CompressedItem& operator=(const CompressedItem&) = delete;
  virtual ~CompressedItem();  // Undoes a step that did not come to its end.

  // What `intra` is given for is left out where the block has one member.

  /// Adds the shards of all members: from this rank's tensor, and to the own shard's result.
  void prepare(MemberSpans& spans);
  Reduction scatter_reduction() const;
  DataType dtype() const { return job_.reduction.dtype; }
  /// Adds the step of the state to `calls`.
  virtual Status encode(KernelCalls& calls) = 0;
  /// The step of the state is done.
  virtual void finish_encoding() = 0;

  // The blocks combine what they encoded, as the compressor does it: topk_batch.hpp,
  // quantized_batch.hpp.

  /// Adds what a member says of its shard to the others: so many numbers as all members do.
  virtual void add_member_header(std::vector<std::uint64_t>& header) const = 0;
  /// What each member said: the first at `headers`, the others `stride` numbers apart. Errors:
  /// kPeerFailed.
  virtual Status read_member_headers(const std::uint64_t* headers, std::size_t stride) = 0;
  /// Ends the step of the state. Adds to `calls` what makes the own shard's result.
  virtual Status finish_step(KernelCalls& calls) = 0;
  /// Adds what is gathered, if anything: for all members alike.
  virtual void add_results(GatheredSpans& spans) = 0;
  /// Adds to `calls` what makes the tensor of what was gathered.
  virtual Status decode(KernelCalls& /*calls*/) { return {}; }

 protected:
  const GridPosition& position() const { return tensor_.entry->position; }
  const TensorSpan& span() const { return tensor_.span; }
  const CompressedJob& job() const { return job_; }
  ShardResidual& state() const { return *tensor_.entry->state; }
  /// The same, where this rank compresses in host memory. All but lists are compressed there.
  HostResidual& host_residual() const { return *state().on_host(); }
  std::uint64_t steps() const { return tensor_.entry->steps; }
  CompressionKernels& kernels() const { return *tensor_.entry->kernels; }
  std::size_t to_bytes(std::size_t elements) const { return elements * element_bytes_; }
  ShardRange shard_of(std::size_t member) const;
  const ShardRange& shard() const { return shard_; }
  /// Where the own shard's result goes, and on its way what it is made of.
  std::byte* result();
  /// What this rank has of its own shard before it is compressed. Null: zeros, as it has joined.
  const std::byte* input();
  /// What is left of the factors after the block's own sum, if there was one.
  Reduction late_reduction() const;
  double late_factor() const { return lightcc::late_factor(job_.reduction, position()); }
  void count(std::uint64_t sent_bytes, std::uint64_t passes);

  /// The shards of all members of the block, as they lie.
  void add_shards(MemberSpans& spans);
  /// The step counts, or is skipped, for all ranks alike.
  void end_step();
  /// The same. Adds what makes the result of a skipped one NaN.
  void conclude(KernelCalls& calls);

  bool non_finite_ = false;  ///< As far as this rank knows by now.

 private:
  CompressedTensor tensor_;
  CompressedJob job_;
  std::size_t element_bytes_;
  ShardRange shard_;
  // The own shard's result, where it does not lie in the tensor's.
  std::shared_ptr<std::byte> apart_;
};

}  // namespace lightcc
