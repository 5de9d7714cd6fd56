// One message has the headers of all tensors. From them everybody knows how long all lists are, so
// the next one has the lists of all tensors, one after another, with nothing in between:
//
//   headers   all-gather: of each tensor, whether its list is finite, and its bytes
//   lists     all-gather, of those whose lists everybody merges
//   pieces    all-to-all, of those whose lists are cut
//   merged    all-gather of their merged pieces
//   dense     an all-reduce for each of those that are sent whole
//
// A tensor goes by lists, by pieces or dense, as topk_plan.hpp says, for all blocks alike. What
// no tensor needs is left out. So is a list that is not finite somewhere: from the headers on,
// everybody knows.
//
// Dense tensors stay alone, because more than 16 blocks add up in an order that depends on what an
// all-reduce holds (net_ring.cpp). Result and bucket have nothing to do with each other.
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

class TopkBatch : public ExchangeBatch<TopkItem> {
 public:
  using ExchangeBatch::ExchangeBatch;

  Started exchange_headers();
  Started exchange_lists();
  Started exchange_pieces();
  Started merge_pieces();
  Started exchange_merged();

 private:
  /// Those that go this way, and are not skipped.
  Items that_go_by(TopkExchange exchange) const;
  Status read_headers();

  std::vector<std::uint64_t> header_;
  std::vector<std::uint64_t> headers_;  // What all blocks said.
};

TopkBatch::Started TopkBatch::exchange_headers() {
  for (TopkItem* const item : items()) {
    if (item->exchange() != TopkExchange::kDense) {
      item->add_header(header_);
    }
  }
  if (header_.empty()) {
    return std::unique_ptr<Work>();
  }
  headers_.resize(blocks() * header_.size());
  return inter().allgather(
      std::as_bytes(std::span(header_)).data(),
      std::as_writable_bytes(std::span(headers_)).data(),
      std::vector<std::size_t>(blocks(), header_.size() * sizeof(std::uint64_t)));
}

Status TopkBatch::read_headers() {
  const std::uint64_t* first = headers_.data();
  for (TopkItem* const item : items()) {
    if (item->exchange() != TopkExchange::kDense) {
      LIGHTCC_RETURN_IF_ERROR(item->read_headers(first, header_.size()));
      first += item->header_numbers();
    }
  }
  return {};
}

TopkBatch::Items TopkBatch::that_go_by(TopkExchange exchange) const {
  Items found;
  for (TopkItem* const item : items()) {
    if (item->exchange() == exchange && !item->is_skipped()) {
      found.push_back(item);
    }
  }
  return found;
}

TopkBatch::Started TopkBatch::exchange_lists() {
  LIGHTCC_RETURN_IF_ERROR(read_headers());
  const Items items = that_go_by(TopkExchange::kLists);
  return items.empty() ? std::unique_ptr<Work>() : allgather(items);
}

TopkBatch::Started TopkBatch::exchange_pieces() {
  for (TopkItem* const item : that_go_by(TopkExchange::kLists)) {
    LIGHTCC_RETURN_IF_ERROR(item->unpack());
  }
  const Items items = that_go_by(TopkExchange::kPieces);
  return items.empty() ? std::unique_ptr<Work>() : alltoall(items);
}

TopkBatch::Started TopkBatch::merge_pieces() {
  drop_sent();
  KernelCalls calls;
  for (TopkItem* const item : that_go_by(TopkExchange::kPieces)) {
    LIGHTCC_RETURN_IF_ERROR(item->unpack());
    LIGHTCC_RETURN_IF_ERROR(item->add_piece(calls));
  }
  return calls.start();
}

TopkBatch::Started TopkBatch::exchange_merged() {
  const Items items = that_go_by(TopkExchange::kPieces);
  if (items.empty()) {
    return std::unique_ptr<Work>();
  }
  std::vector<TensorSpan> pieces;
  std::vector<std::size_t> counts(blocks(), 0);
  for (std::size_t block = 0; block < blocks(); ++block) {
    for (TopkItem* const item : items) {
      pieces.push_back(item->merged_piece(block));
      counts[block] += pieces.back().count;
    }
  }
  return inter().allgather_bucket(std::move(pieces), std::move(counts), items.front()->dtype());
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
      starts.emplace_back(
          [item, &inter] { return TopkBatch::Started(item->exchange_dense(inter)); });
      starts.emplace_back([item] {
        item->check_dense();
        return TopkBatch::Started(nullptr);
      });
    }
  }
  return std::make_unique<Sequence>(std::move(starts));
}

}  // namespace lightcc
