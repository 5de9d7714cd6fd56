// One tensor on its way through a quantised all-reduce.
//
// All elements of the shard travel between blocks, in 8 or 4 bits (quantize.hpp). With m blocks
// and c bytes for the codes of a shard, a member sends
//
//   m = 2   c                  each gets the other's codes, and both add the same two in order
//   m > 2   2 (m - 1) / m c    each adds one part up, quantises the sum, and all get that
//
// A member needs no codes of its own of the part that it adds up: it adds the elements themselves,
// and what the sum's codes do not say is its new residual there. A residual of the sum that went
// through the member's own codes, which suit its elements and not the sum, would be owed for long.
// So everybody decodes the same bytes: replicas have the same bits. Lengths follow from the tensor,
// and NaN for a scale says that a part is not finite; nothing else has to be said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/exchange/compressed_item.hpp"
#include "lightcc/compression/quantized/quantize.hpp"
#include "lightcc/compression/residual/shard.hpp"

namespace lightcc {

class QuantizedItem final : public CompressedItem {
 public:
  QuantizedItem(CompressedTensor tensor, const CompressedJob& job);

  Status encode(KernelCalls& calls) override;
  void finish_encoding() override;
  // Between blocks, together with the other tensors of its batch (quantized_batch.hpp).

  /// Whether each block adds up a part, and not all of them the shard.
  bool is_cut() const { return position().blocks > 2; }
  /// Bytes of the codes of the part that `block` adds up, or of the shard.
  std::size_t bytes_for(std::size_t block) const { return bytes_of(part_of(block)); }
  /// Bytes of the codes that this block sends to `block`.
  std::size_t bytes_to(std::size_t block) const {
    return is_cut() && block == position().block ? 0 : bytes_for(block);
  }
  /// Bytes of the codes that `block` sends to this one.
  std::size_t bytes_from(std::size_t block) const {
    return is_cut() && block == position().block ? 0 : bytes_for(position().block);
  }
  /// Writes the own codes for a block to `to`.
  Status write_for(std::size_t block, std::byte* to) const;
  /// The own codes have been written for everybody.
  void drop_encoded() { own_.reset(); }
  /// Where a block's codes of the own part are, in `memory`.
  void receive(std::size_t block, const std::byte* from, const SharedBuffer& memory);
  /// Where the next block's sum is; the own one is written there.
  void receive_sum(std::byte* at, const SharedBuffer& memory);
  /// Adds up the own part.
  Status quantize_sum();
  Status read_results();

  // Within the block again.

  void add_member_header(std::vector<std::uint64_t>& header) const override;
  Status read_member_headers(const std::uint64_t* headers, std::size_t stride) override;
  Status finish_step(KernelCalls& calls) override;
  void add_results(GatheredSpans& spans) override;

 private:
  using Parts = std::span<const std::span<const std::byte>>;

  ShardRange part_of(std::size_t block) const;
  std::size_t bytes_of(const ShardRange& range) const;
  Status read_codes();
  void write_result();

  QuantizedFormat format_;
  CompressedBuffer own_;  // Codes of the own shard, part after part, without the own part.
  SharedBuffer all_;      // Has parts_ as blocks sent them.
  SharedBuffer sums_;     // Has the sums of all parts.
  std::vector<std::span<const std::byte>> parts_;  // In all_, and then in sums_.
  std::vector<std::byte*> sum_parts_;              // In sums_.
};

}  // namespace lightcc
