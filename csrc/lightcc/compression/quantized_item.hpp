// One tensor on its way through a quantised all-reduce.
//
// All elements of the shard travel between blocks, in 8, 4 or 1 bits (quantize.hpp). With m blocks
// and c bytes for the codes of a shard, a member sends
//
//   m = 2   c                  each gets the other's codes, and both add the same two in order
//   m > 2   2 (m - 1) / m c    each adds one part up, quantises the sum, and all get that
//
// Of the part that a member adds up, it needs no codes of its own: it adds the elements themselves,
// and what the sum's codes do not say is its new residual there. A residual of the sum that went
// through the member's own codes, which suit its elements and not the sum, would be owed for long.
// So everybody decodes the same bytes: replicas have the same bits. Lengths follow from the tensor,
// and NaN for a scale says that a part is void; nothing else has to be said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/compressed_item.hpp"
#include "lightcc/compression/quantize.hpp"
#include "lightcc/compression/shard.hpp"

namespace lightcc {

class QuantizedItem final : public CompressedItem {
 public:
  QuantizedItem(CompressedTensor tensor, const CompressedJob& job);

  Status add_compression(KernelCalls& calls) override;
  void finish_compression() override;
  /// Each is started when the one before is done; null: there is no further one.
  Result<std::unique_ptr<Work>> next_exchange(Group& inter);
  void add_member_header(std::vector<std::uint64_t>& header) const override;
  Status read_member_headers(const std::uint64_t* headers, std::size_t stride) override;
  Status finish_shard(KernelCalls& calls) override;
  void add_results(GatheredSpans& spans) override;

 private:
  enum class Step : std::uint8_t { kCodes, kSum, kSums, kResults };

  bool is_cut() const { return position().blocks > 2; }
  /// Whose codes a member gets.
  std::size_t senders() const { return position().blocks - (is_cut() ? 1 : 0); }
  ShardRange part_of(std::size_t block) const;
  std::size_t bytes_of(const ShardRange& range) const;
  std::vector<std::size_t> bytes_of_parts() const;
  std::vector<std::size_t> without_own(std::vector<std::size_t> bytes) const;

  std::unique_ptr<Work> exchange_codes(Group& inter);
  Result<std::unique_ptr<Work>> quantize_sum();
  std::unique_ptr<Work> exchange_sums(Group& inter);
  Status read_codes();
  Status read_sums();

  Status write_result();

  QuantizedFormat format_;
  CompressedBuffer own_;   // Codes of the own shard, part after part.
  CompressedBuffer all_;   // Of all blocks for the shard, or of the others for the own part of it.
  CompressedBuffer sum_;   // Of the sum of the own part.
  CompressedBuffer sums_;  // Of all parts.
  std::vector<std::span<const std::byte>> parts_;  // Of all_, or of sums_.
  bool sum_is_void_ = false;
  Step next_ = Step::kCodes;
};

}  // namespace lightcc
