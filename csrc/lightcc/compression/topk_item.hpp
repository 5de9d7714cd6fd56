// One tensor on its way through a top-k compressed all-reduce. (Essay: topk_work.cpp.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/shard.hpp"
#include "lightcc/compression/topk_exchange.hpp"
#include "lightcc/compression/topk_kernels.hpp"
#include "lightcc/compression/topk_list.hpp"
#include "lightcc/compression/topk_store.hpp"

namespace lightcc {

/// Host memory, not a vector, which would write zeros first.
using TopkBuffer = std::unique_ptr<std::byte[]>;  // NOLINT(modernize-avoid-c-arrays)

struct TopkTensor {
  TensorSpan span;
  std::shared_ptr<TopkEntry> entry;  ///< For a tensor of as many elements.
};

/// What the tensors of one bucket have in common.
struct TopkJob {
  Reduction reduction;  ///< kSum.
  TopkSpec spec;
  TopkCounters* counters = nullptr;  ///< Outlives the Work, as kernels do.
};

/// Each step is started when the one before is done; next_scatter(), next_exchange() and
/// next_gather() return null when there is no further one. Errors: kPeerFailed for what a peer
/// sent, kInvalidArgument or kInternal for what the compression refuses; kSystem when memory is
/// short.
class TopkItem {
 public:
  TopkItem(TopkTensor tensor, const TopkJob& job);
  TopkItem(const TopkItem&) = delete;
  TopkItem& operator=(const TopkItem&) = delete;
  ~TopkItem();  // Undoes a step that did not come to its end.

  // `intra` is null where the block has one member.
  Result<std::unique_ptr<Work>> next_scatter(Group* intra);
  Result<std::unique_ptr<Work>> next_exchange(Group& inter);
  Result<std::unique_ptr<Work>> next_gather(Group* intra);

 private:
  const GridPlace& place() const { return tensor_.entry->place; }
  std::size_t to_bytes(std::size_t elements) const { return elements * element_bytes_; }
  ShardRange shard_of(std::size_t member) const;
  ShardRange piece_of(std::size_t block) const;  // Of the own shard, from its first element on.
  TopkKernels& kernels() const { return *tensor_.entry->kernels; }
  std::byte* result();
  const std::byte* input();
  Reduction late_reduction() const;
  double late_factor() const;

  std::unique_ptr<Work> scatter(Group& intra);
  Result<std::unique_ptr<Work>> start_compression();
  void count();

  std::unique_ptr<Work> exchange_dense(Group& inter);
  std::unique_ptr<Work> exchange_headers(Group& inter);
  Status read_headers();
  std::unique_ptr<Work> exchange_lists(Group& inter);
  Result<std::unique_ptr<Work>> exchange_pieces(Group& inter);
  Result<std::unique_ptr<Work>> exchange_merged(Group& inter);

  std::unique_ptr<Work> gather_dense(Group& intra);
  std::unique_ptr<Work> gather_headers(Group& intra);
  Result<std::unique_ptr<Work>> gather_results(Group& intra);
  Status merge_everything();
  Status conclude();

  /// Lists of `sizes` bytes, one after another in `bytes`, of the elements of `range` of a shard,
  /// merged into `out`.
  Status merge(std::span<const std::byte> bytes,
               std::span<const std::uint64_t> sizes,
               const ShardRange& range,
               std::byte* out) const;

  TopkTensor tensor_;
  TopkJob job_;
  TopkFormat format_;
  std::size_t element_bytes_;
  ShardRange shard_;
  std::size_t k_ = 0;
  std::size_t capacity_ = 0;
  TopkPlan plan_;
  // The own shard's result, where the tensor's is not wanted.
  std::shared_ptr<std::byte> unwanted_;

  int scattered_ = 0;  // Steps done.
  int exchanged_ = 0;
  int gathered_ = 0;
  bool non_finite_ = false;
  TopkOutcome outcome_;  // Of the own list.
  TopkBuffer own_;
  TopkBuffer pieces_;                   // The own list, cut.
  std::vector<std::uint64_t> header_;   // To the other blocks, then to the other members.
  std::vector<std::uint64_t> headers_;  // From all blocks, then from all members.
  std::vector<std::uint64_t> sizes_;    // Of lists_.
  TopkBuffer lists_;                    // From all blocks.
  std::size_t lists_bytes_ = 0;
  TopkBuffer all_lists_;  // From all blocks and members.
};

}  // namespace lightcc
