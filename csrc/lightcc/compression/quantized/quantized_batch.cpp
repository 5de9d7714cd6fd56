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
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/sequence.hpp"
#include "lightcc/compression/exchange/block_layout.hpp"

namespace lightcc {
namespace {

class QuantizedBatch : public ExchangeBatch<QuantizedItem> {
 public:
  using ExchangeBatch::ExchangeBatch;

  Started exchange_codes() { return is_cut() ? alltoall(items()) : allgather(items()); }
  Started quantize_sums();
  Started exchange_sums();
  Started read_results();

 private:
  bool is_cut() const { return items().front()->is_cut(); }

  BlockLayout sums_;
};

QuantizedBatch::Started QuantizedBatch::quantize_sums() {
  drop_sent();
  if (!is_cut()) {
    return std::unique_ptr<Work>();
  }
  LIGHTCC_ASSIGN_OR_RETURN(
      sums_,
      lay_out(
          items(),
          blocks(),
          [](const QuantizedItem& item, std::size_t block) { return item.bytes_for(block); },
          [](QuantizedItem& item, std::size_t, std::byte* at, const SharedBuffer& memory) {
            item.receive_sum(at, memory);
            return Status();
          }));
  for (QuantizedItem* const item : items()) {
    LIGHTCC_RETURN_IF_ERROR(item->quantize_sum());
  }
  return std::unique_ptr<Work>();
}

QuantizedBatch::Started QuantizedBatch::exchange_sums() {
  if (!is_cut()) {
    return std::unique_ptr<Work>();
  }
  return inter().allgather(sums_.start_of(block()), sums_.memory.get(), sums_.bytes);
}

QuantizedBatch::Started QuantizedBatch::read_results() {
  for (QuantizedItem* const item : items()) {
    LIGHTCC_RETURN_IF_ERROR(item->read_results());
  }
  return std::unique_ptr<Work>();
}

}  // namespace

std::unique_ptr<Work> make_quantized_exchange(std::span<QuantizedItem* const> items, Group& inter) {
  const auto batch = std::make_shared<QuantizedBatch>(items, inter);
  return std::make_unique<Sequence>(
      std::vector<Sequence::Start>{[batch] { return batch->exchange_codes(); },
                                   [batch] { return batch->quantize_sums(); },
                                   [batch] { return batch->exchange_sums(); },
                                   [batch] { return batch->read_results(); }});
}

}  // namespace lightcc
