// What several tensors have for each block, or from each, as an operation between blocks wants it:
// block after block, and in each tensor after tensor.
#pragma once

#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/exchange/compressed_item.hpp"

namespace lightcc {

struct BlockLayout {
  SharedBuffer memory;
  std::vector<std::size_t> bytes;  ///< Each block has so many.

  std::byte* start_of(std::size_t block) const {
    const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(block);
    return memory.get() + std::accumulate(bytes.begin(), end, std::size_t{0});
  }
};

/// `bytes_of(item, block)` says how many bytes there are. `tell(item, block, at, memory)` is then
/// told where in the layout's memory. It returns a Status.
template <typename Item, typename BytesOf, typename Tell>
Result<BlockLayout> lay_out(const std::vector<Item*>& items,
                            std::size_t blocks,
                            const BytesOf& bytes_of,
                            const Tell& tell) {
  BlockLayout layout{.memory = nullptr, .bytes = std::vector<std::size_t>(blocks, 0)};
  for (std::size_t block = 0; block < blocks; ++block) {
    for (const Item* const item : items) {
      layout.bytes[block] += bytes_of(*item, block);
    }
  }
  layout.memory = make_compressed_buffer(
      std::accumulate(layout.bytes.begin(), layout.bytes.end(), std::size_t{0}));
  std::byte* next = layout.memory.get();
  for (std::size_t block = 0; block < blocks; ++block) {
    for (Item* const item : items) {
      LIGHTCC_RETURN_IF_ERROR(tell(*item, block, next, layout.memory));
      next += bytes_of(*item, block);
    }
  }
  return layout;
}

/// The tensors of a batch between blocks. `Item` writes what its own block sends, and is told where
/// that of the others comes.
template <typename Item>
class ExchangeBatch {
 public:
  using Started = Result<std::unique_ptr<Work>>;

  ExchangeBatch(std::span<Item* const> items, Group& inter)
      : items_(items.begin(), items.end()), inter_(inter) {}

 protected:
  using Items = std::vector<Item*>;

  const Items& items() const { return items_; }
  Group& inter() const { return inter_; }
  std::size_t blocks() const { return static_cast<std::size_t>(inter_.size()); }
  std::size_t block() const { return static_cast<std::size_t>(inter_.rank()); }

  /// Each block sends the same to all.
  Started allgather(const Items& items) const {
    LIGHTCC_ASSIGN_OR_RETURN(BlockLayout received, expect(items));
    std::byte* const own = received.start_of(block());
    std::byte* next = own;
    for (Item* const item : items) {
      LIGHTCC_RETURN_IF_ERROR(item->write_for(block(), next));
      next += item->bytes_to(block());
      item->drop_encoded();
    }
    return inter_.allgather(own, received.memory.get(), std::move(received.bytes));
  }
  /// Each block sends to each other one what is for that, from memory that drop_sent() gives back.
  Started alltoall(const Items& items) {
    LIGHTCC_ASSIGN_OR_RETURN(
        sent_,
        lay_out(
            items,
            blocks(),
            [](const Item& item, std::size_t to) { return item.bytes_to(to); },
            [](Item& item, std::size_t to, std::byte* at, const SharedBuffer& /*memory*/) {
              return item.write_for(to, at);
            }));
    for (Item* const item : items) {
      item->drop_encoded();
    }
    LIGHTCC_ASSIGN_OR_RETURN(BlockLayout received, expect(items));
    return inter_.alltoall(
        sent_.memory.get(), sent_.bytes, received.memory.get(), std::move(received.bytes));
  }
  void drop_sent() { sent_ = {}; }

 private:
  /// Room for what all blocks send of `items`.
  Result<BlockLayout> expect(const Items& items) const {
    return lay_out(
        items,
        blocks(),
        [](const Item& item, std::size_t from) { return item.bytes_from(from); },
        [](Item& item, std::size_t from, std::byte* at, const SharedBuffer& memory) {
          item.receive(from, at, memory);
          return Status();
        });
  }

  Items items_;
  Group& inter_;
  BlockLayout sent_;
};

}  // namespace lightcc
