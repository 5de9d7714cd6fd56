// All-gather: the owners of a share in all blocks exchange their own parts, then every block shares
// what its members received. There is no first stage: a part crosses to each block once, carried by
// the member that has it.
//
//   bytes sent by each member through the transport   (m-1) B_r, B_r being its own part; a flat
//                                                     all-gather: (mn-1) B_r
//
// Parts arrive where they belong, and the block sends them on from there. Only what a member does
// not want is kept aside.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_parts.hpp"
#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {
namespace {

class AllgatherStages final : public GridPartStages {
 public:
  AllgatherStages(const GridState& state,
                  const std::vector<TensorSpan>& tensors,
                  const std::vector<std::size_t>& bytes)
      : GridPartStages(state,
                       tensors,
                       1,
                       bytes,
                       state.options.min_gathered_bytes,
                       std::ranges::any_of(tensors, [](const TensorSpan& tensor) {
                         return tensor.out == nullptr;
                       })) {}

  std::unique_ptr<Work> start_scatter(std::size_t) override { return nullptr; }
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) override;
  std::unique_ptr<Work> start_gather(std::size_t chunk) override;

 private:
  static std::byte* destination(const TensorSpan& piece, std::byte* stage) {
    return piece.out != nullptr ? piece.out : stage;
  }
};

std::unique_ptr<Work> AllgatherStages::start_exchange(std::size_t chunk, Group& group) {
  return state().on_columns(group, [&](std::size_t index, Group& others) -> std::unique_ptr<Work> {
    std::vector<std::size_t> bytes = column(chunk, index);
    if (bytes.empty()) {
      return nullptr;
    }
    std::vector<TensorSpan> spans;
    for_each_piece(chunk,
                   state().first_share() + index,
                   [&](const TensorSpan& piece, std::size_t block, std::byte* stage) {
                     spans.push_back({.in = block == state().block() ? piece.in : nullptr,
                                      .out = destination(piece, stage),
                                      .count = piece.count});
                   });
    return others.allgather_bucket(std::move(spans), std::move(bytes), DataType::kUint8);
  });
}

std::unique_ptr<Work> AllgatherStages::start_gather(std::size_t chunk) {
  std::vector<TensorSpan> spans;
  std::vector<std::size_t> bytes(state().members(), 0);
  for (std::size_t share = 0; share < state().shape.width; ++share) {
    const std::size_t owner = owner_of(share);
    for_each_piece(chunk, share, [&](const TensorSpan& piece, std::size_t, std::byte* stage) {
      spans.push_back({.in = owner == state().me() ? destination(piece, stage) : nullptr,
                       .out = piece.out,
                       .count = piece.count});
      bytes[owner] += piece.count;
    });
  }
  return intra().allgather_bucket(std::move(spans), std::move(bytes), DataType::kUint8);
}

}  // namespace

std::unique_ptr<GridStages> make_allgather_stages(const GridState& state,
                                                  const std::vector<TensorSpan>& tensors,
                                                  const std::vector<std::size_t>& bytes) {
  return std::make_unique<AllgatherStages>(state, tensors, bytes);
}

}  // namespace lightcc
