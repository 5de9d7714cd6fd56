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
#include "lightcc/compression/compressed_item.hpp"
#include "lightcc/compression/shard.hpp"
#include "lightcc/compression/topk_exchange.hpp"
#include "lightcc/compression/topk_list.hpp"

namespace lightcc {

class TopkItem final : public CompressedItem {
 public:
  TopkItem(CompressedTensor tensor, const CompressedJob& job);

  Status add_compression(KernelCalls& calls) override;
  void finish_compression() override;
  Result<std::unique_ptr<Work>> next_exchange(Group& inter) override;
  std::unique_ptr<Work> gather_headers(Group& intra) override;
  Status finish_shard(KernelCalls& calls) override;
  std::unique_ptr<Work> gather_results(Group& intra) override;
  Status finish_tensor(KernelCalls& calls) override;

 private:
  ShardRange piece_of(std::size_t block) const;  // Of the own shard, from its first element on.

  std::unique_ptr<Work> exchange_dense(Group& inter);
  std::unique_ptr<Work> exchange_headers(Group& inter);
  Status read_headers();
  std::unique_ptr<Work> exchange_lists(Group& inter);
  Result<std::unique_ptr<Work>> exchange_pieces(Group& inter);
  Result<std::unique_ptr<Work>> merge_piece();
  std::unique_ptr<Work> exchange_merged(Group& inter);

  Status read_gathered_headers();

  /// The sum, into `out`, of lists of `sizes` bytes, one after another in `bytes`, of the elements
  /// of `range` of a shard.
  Result<TopkSum> sum_of(std::span<const std::byte> bytes,
                         std::span<const std::uint64_t> sizes,
                         const ShardRange& range,
                         std::byte* out) const;

  TopkFormat format_;
  std::size_t k_ = 0;
  std::size_t capacity_ = 0;
  TopkPlan plan_;

  int exchanged_ = 0;    // Steps done.
  TopkOutcome outcome_;  // Of the own list.
  CompressedBuffer own_;
  CompressedBuffer pieces_;             // The own list, cut.
  std::vector<std::uint64_t> header_;   // To the other blocks, then to the other members.
  std::vector<std::uint64_t> headers_;  // From all blocks, then from all members.
  std::vector<std::uint64_t> sizes_;    // Of lists_.
  CompressedBuffer lists_;              // From all blocks.
  std::size_t lists_bytes_ = 0;
  std::vector<std::size_t> totals_;  // Bytes of the lists of each member.
  CompressedBuffer all_lists_;       // From all blocks and members.
};

}  // namespace lightcc
