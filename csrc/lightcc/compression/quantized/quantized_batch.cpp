// Codes of all tensors travel in one message, one tensor after another. All know how long they are,
// so nothing else has to be said.
//
//   m = 2   all-gather of the codes
//   m > 2   all-to-all of the codes; the sums of the own parts; all-gather of these
//
// Each tensor has the bits that it would have by itself. The own codes or sums are written to their
// place among all others, and are sent from there.
#include "lightcc/compression/quantized/quantized_batch.hpp"

#include <cstddef>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/sequence.hpp"
#include "lightcc/compression/exchange/block_layout.hpp"

namespace lightcc {
namespace {

using Started = Result<std::unique_ptr<Work>>;

class QuantizedBatch {
 public:
  QuantizedBatch(std::span<QuantizedItem* const> items, Group& inter)
      : items_(items.begin(), items.end()),
        inter_(inter),
        blocks_(static_cast<std::size_t>(inter.size())),
        block_(static_cast<std::size_t>(inter.rank())) {}

  Started exchange_codes();
  Started quantize_sums();
  Started exchange_sums();
  Started read_results();

 private:
  bool is_cut() const { return items_.front()->is_cut(); }

  std::vector<QuantizedItem*> items_;
  Group& inter_;
  std::size_t blocks_;
  std::size_t block_;
  BlockLayout sent_;  // Codes for all blocks, where each block adds up a part.
  BlockLayout sums_;
};

Started QuantizedBatch::exchange_codes() {
  const std::size_t own = block_;
  LIGHTCC_ASSIGN_OR_RETURN(
      BlockLayout received,
      lay_out(
          items_,
          blocks_,
          [own](const QuantizedItem& item, std::size_t block) {
            return item.bytes_between(block, own);
          },
          [](QuantizedItem& item, std::size_t block, std::byte* at, const SharedBuffer& memory) {
            item.receive_codes(block, at, memory);
            return Status();
          }));
  if (!is_cut()) {
    std::byte* const start = received.start_of(own);
    std::byte* next = start;
    for (QuantizedItem* const item : items_) {
      item->write_for(own, next);
      next += item->bytes_for(own);
      item->drop_codes();
    }
    return inter_.allgather(start, received.memory.get(), std::move(received.bytes));
  }
  LIGHTCC_ASSIGN_OR_RETURN(
      sent_,
      lay_out(
          items_,
          blocks_,
          [own](const QuantizedItem& item, std::size_t block) {
            return item.bytes_between(own, block);
          },
          [](QuantizedItem& item, std::size_t block, std::byte* at, const SharedBuffer&) {
            item.write_for(block, at);
            return Status();
          }));
  for (QuantizedItem* const item : items_) {
    item->drop_codes();
  }
  return inter_.alltoall(
      sent_.memory.get(), sent_.bytes, received.memory.get(), std::move(received.bytes));
}

Started QuantizedBatch::quantize_sums() {
  sent_ = {};
  if (!is_cut()) {
    return std::unique_ptr<Work>();
  }
  LIGHTCC_ASSIGN_OR_RETURN(
      sums_,
      lay_out(
          items_,
          blocks_,
          [](const QuantizedItem& item, std::size_t block) { return item.bytes_for(block); },
          [](QuantizedItem& item, std::size_t, std::byte* at, const SharedBuffer& memory) {
            item.receive_sum(at, memory);
            return Status();
          }));
  for (QuantizedItem* const item : items_) {
    LIGHTCC_RETURN_IF_ERROR(item->quantize_sum());
  }
  return std::unique_ptr<Work>();
}

Started QuantizedBatch::exchange_sums() {
  if (!is_cut()) {
    return std::unique_ptr<Work>();
  }
  return inter_.allgather(sums_.start_of(block_), sums_.memory.get(), sums_.bytes);
}

Started QuantizedBatch::read_results() {
  for (QuantizedItem* const item : items_) {
    LIGHTCC_RETURN_IF_ERROR(item->read_results());
  }
  return std::unique_ptr<Work>();
}

}  // namespace

std::unique_ptr<Work> make_quantized_exchange(std::span<QuantizedItem* const> items, Group& inter) {
  const auto batch = std::make_shared<QuantizedBatch>(items, inter);
  std::vector<Sequence::Start> starts;
  starts.emplace_back([batch] { return batch->exchange_codes(); });
  starts.emplace_back([batch] { return batch->quantize_sums(); });
  starts.emplace_back([batch] { return batch->exchange_sums(); });
  starts.emplace_back([batch] { return batch->read_results(); });
  return std::make_unique<Sequence>(std::move(starts));
}

}  // namespace lightcc
