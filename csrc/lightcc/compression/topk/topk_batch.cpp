// One message has the headers of all tensors. From them everybody knows how long all lists are, so
// the next one has the lists of all tensors, one after another, with nothing in between:
//
//   headers   all-gather: of each tensor, whether its list is void, and its bytes
//   lists     all-gather, of those whose lists everybody merges
//   pieces    all-to-all, of those whose lists are cut
//   merged    all-gather of their merged pieces
//   dense     an all-reduce for each of those that are sent whole
//
// A tensor goes by lists, by pieces or dense, as topk_plan.hpp says, for all blocks alike. What
// no tensor needs is left out. So is a list that is void somewhere: from the headers on, everybody
// knows.
//
// Dense tensors stay alone, because more than 16 blocks add up in an order that depends on what an
// all-reduce holds (net_ring.hpp). Result and bucket have nothing to do with each other.
//
// Received lists lie as they came: block after block, and in each tensor after tensor. The own ones
// are written to their place among them, and are sent from there.
#include "lightcc/compression/topk/topk_batch.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/sequence.hpp"
#include "lightcc/compression/exchange/block_layout.hpp"

namespace lightcc {
namespace {

using Started = Result<std::unique_ptr<Work>>;

class TopkBatch {
 public:
  TopkBatch(std::span<TopkItem* const> items, Group& inter)
      : items_(items.begin(), items.end()),
        inter_(inter),
        blocks_(static_cast<std::size_t>(inter.size())),
        block_(static_cast<std::size_t>(inter.rank())) {}

  Started exchange_headers();
  Started exchange_lists();
  Started exchange_pieces();
  Started merge_pieces();
  Started exchange_merged();

 private:
  /// Those that go this way, and are not void.
  std::vector<TopkItem*> that_go_by(TopkExchange exchange) const;
  Status read_headers();
  Result<BlockLayout> expect(const std::vector<TopkItem*>& items) const;

  std::vector<TopkItem*> items_;
  Group& inter_;
  std::size_t blocks_;
  std::size_t block_;
  std::vector<std::uint64_t> header_;
  std::vector<std::uint64_t> headers_;  // Of all blocks.
  BlockLayout sent_;                    // Pieces for all blocks.
};

Started TopkBatch::exchange_headers() {
  for (TopkItem* const item : items_) {
    if (item->exchange() != TopkExchange::kDense) {
      item->add_header(header_);
    }
  }
  if (header_.empty()) {
    return std::unique_ptr<Work>();
  }
  headers_.resize(blocks_ * header_.size());
  return inter_.allgather(
      std::as_bytes(std::span(header_)).data(),
      std::as_writable_bytes(std::span(headers_)).data(),
      std::vector<std::size_t>(blocks_, header_.size() * sizeof(std::uint64_t)));
}

Status TopkBatch::read_headers() {
  const std::uint64_t* first = headers_.data();
  for (TopkItem* const item : items_) {
    if (item->exchange() != TopkExchange::kDense) {
      LIGHTCC_RETURN_IF_ERROR(item->read_headers(first, header_.size()));
      first += item->header_numbers();
    }
  }
  return {};
}

std::vector<TopkItem*> TopkBatch::that_go_by(TopkExchange exchange) const {
  std::vector<TopkItem*> found;
  for (TopkItem* const item : items_) {
    if (item->exchange() == exchange && !item->is_void()) {
      found.push_back(item);
    }
  }
  return found;
}

/// Room for what all blocks send of `items`.
Result<BlockLayout> TopkBatch::expect(const std::vector<TopkItem*>& items) const {
  return lay_out(
      items,
      blocks_,
      [](const TopkItem& item, std::size_t block) { return item.bytes_from(block); },
      [](TopkItem& item, std::size_t block, std::byte* at, const SharedBuffer& memory) {
        item.receive(block, at, memory);
        return Status();
      });
}

Started TopkBatch::exchange_lists() {
  LIGHTCC_RETURN_IF_ERROR(read_headers());
  const std::vector<TopkItem*> items = that_go_by(TopkExchange::kLists);
  if (items.empty()) {
    return std::unique_ptr<Work>();
  }
  LIGHTCC_ASSIGN_OR_RETURN(BlockLayout received, expect(items));
  std::byte* const own = received.start_of(block_);
  std::byte* next = own;
  for (TopkItem* const item : items) {
    LIGHTCC_RETURN_IF_ERROR(item->write_for(block_, next));
    next += item->bytes_for(block_);
    item->drop_list();
  }
  return inter_.allgather(own, received.memory.get(), std::move(received.bytes));
}

Started TopkBatch::exchange_pieces() {
  const std::vector<TopkItem*> items = that_go_by(TopkExchange::kPieces);
  if (items.empty()) {
    return std::unique_ptr<Work>();
  }
  LIGHTCC_ASSIGN_OR_RETURN(
      sent_,
      lay_out(
          items,
          blocks_,
          [](const TopkItem& item, std::size_t block) { return item.bytes_for(block); },
          [](TopkItem& item, std::size_t block, std::byte* at, const SharedBuffer&) {
            return item.write_for(block, at);
          }));
  for (TopkItem* const item : items) {
    item->drop_list();
  }
  LIGHTCC_ASSIGN_OR_RETURN(BlockLayout received, expect(items));
  return inter_.alltoall(
      sent_.memory.get(), sent_.bytes, received.memory.get(), std::move(received.bytes));
}

Started TopkBatch::merge_pieces() {
  sent_ = {};
  KernelCalls calls;
  for (TopkItem* const item : that_go_by(TopkExchange::kPieces)) {
    LIGHTCC_RETURN_IF_ERROR(item->add_piece(calls));
  }
  return calls.start();
}

Started TopkBatch::exchange_merged() {
  const std::vector<TopkItem*> items = that_go_by(TopkExchange::kPieces);
  if (items.empty()) {
    return std::unique_ptr<Work>();
  }
  std::vector<TensorSpan> pieces;
  std::vector<std::size_t> counts(blocks_, 0);
  for (std::size_t block = 0; block < blocks_; ++block) {
    for (TopkItem* const item : items) {
      pieces.push_back(item->merged_piece(block));
      counts[block] += pieces.back().count;
    }
  }
  return inter_.allgather_bucket(std::move(pieces), std::move(counts), items.front()->dtype());
}

}  // namespace

std::unique_ptr<Work> make_topk_exchange(std::span<TopkItem* const> items, Group& inter) {
  const auto batch = std::make_shared<TopkBatch>(items, inter);
  std::vector<Sequence::Start> starts;
  starts.emplace_back([batch] { return batch->exchange_headers(); });
  starts.emplace_back([batch] { return batch->exchange_lists(); });
  starts.emplace_back([batch] { return batch->exchange_pieces(); });
  starts.emplace_back([batch] { return batch->merge_pieces(); });
  starts.emplace_back([batch] { return batch->exchange_merged(); });
  for (TopkItem* const item : items) {
    if (item->exchange() == TopkExchange::kDense) {
      starts.emplace_back([item, &inter] { return Started(item->exchange_dense(inter)); });
      starts.emplace_back([item] {
        item->check_dense();
        return Started(nullptr);
      });
    }
  }
  return std::make_unique<Sequence>(std::move(starts));
}

}  // namespace lightcc
