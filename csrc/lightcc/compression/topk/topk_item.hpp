// One tensor on its way through a top-k compressed all-reduce. (Essay: compressed_allreduce.cpp.)
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
#include "lightcc/compression/exchange/compressed_item.hpp"
#include "lightcc/compression/residual/shard.hpp"
#include "lightcc/compression/topk/topk_list.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

namespace lightcc {

class TopkItem final : public CompressedItem {
 public:
  TopkItem(CompressedTensor tensor, const CompressedJob& job);

  Status encode(KernelCalls& calls) override;
  void finish_encoding() override;

  // Between blocks, together with the other tensors of its batch (topk_batch.hpp).

  TopkExchange exchange() const { return plan_.exchange; }
  /// Whether its step is, as far as is known here. From read_headers() on, all members with this
  /// shard know the same.
  bool is_skipped() const { return non_finite_; }
  /// Numbers of a header, the same for all blocks; none where the shard travels dense.
  std::size_t header_numbers() const;
  /// Adds the header: whether the list is not finite, then the bytes of the list or of its pieces.
  void add_header(std::vector<std::uint64_t>& header);
  /// The headers of all blocks: the first at `headers`, the others `stride` numbers apart. Errors:
  /// kPeerFailed, one says what cannot be.
  Status read_headers(const std::uint64_t* headers, std::size_t stride);
  /// Bytes of the own list, or of its piece for `block`.
  std::size_t bytes_to(std::size_t block) const;
  /// Writes these to `to`.
  Status write_for(std::size_t block, std::byte* to) const;
  /// The own list has been written for everybody.
  void drop_encoded() { own_.reset(); }
  /// Bytes that `block` said it sends.
  std::size_t bytes_from(std::size_t block) const { return sizes_[block]; }
  /// Where they are, in `memory`.
  void receive(std::size_t block, const std::byte* from, const SharedBuffer& memory);
  /// Makes lists of topk_list.hpp of those that travelled packed. Errors: kPeerFailed, one is none.
  Status unpack();
  /// Adds the sum of the pieces to `calls`.
  Status add_piece(KernelCalls& calls);
  /// What `block` sums up: in the result, of which this member has its own piece.
  TensorSpan merged_piece(std::size_t block);

  std::unique_ptr<Work> exchange_dense(Group& inter);
  void check_dense();

  // Within the block again.

  void add_member_header(std::vector<std::uint64_t>& header) const override;
  Status read_member_headers(const std::uint64_t* headers, std::size_t stride) override;
  Status finish_step(KernelCalls& calls) override;
  void add_results(GatheredSpans& spans) override;
  Status decode(KernelCalls& calls) override;

 private:
  using Lists = std::span<const std::span<const std::byte>>;

  std::size_t room() const { return max_list_bytes(shard().size_elems(), capacity_, format_); }
  ShardRange piece_of(std::size_t block) const;  // Counted from the own shard's begin.
  /// The sum, into `out`, of `lists` of the elements of `range` of a shard.
  Result<TopkSum> sum_of(Lists lists, const ShardRange& range, std::byte* out) const;

  TopkFormat format_;
  std::size_t k_ = 0;
  std::size_t capacity_ = 0;
  TopkPlan plan_;

  TopkOutcome outcome_;  // The own list's.
  CompressedBuffer own_;
  std::vector<std::size_t> piece_bytes_;  // What the own list has for each block.
  std::vector<std::size_t> sizes_;        // What lists_ have.
  SharedBuffer received_;
  CompressedBuffer unpacked_;
  std::vector<std::span<const std::byte>> lists_;  // From all blocks, in received_ or unpacked_.
  std::vector<std::size_t> member_sizes_;          // What members pass on: m lists each.
  CompressedBuffer all_lists_;                     // From all members and blocks.
  std::vector<std::span<const std::byte>> member_lists_;  // In all_lists_.
};

}  // namespace lightcc
