// All-gather: the owners of a share in all blocks exchange their own parts, then every block shares
// what its members received. There is no first stage: a part crosses to each block once, carried by
// the member that has it.
//
//   bytes sent by each member through the transport   (m-1) B_r, B_r being its own part; a flat
//                                                     all-gather: (mn-1) B_r
//
// Parts of other blocks do not lie together in the output, so the exchange collects them in a place
// of its own, from which the block shares them, this member included.
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/grid/grid_parts.hpp"
#include "lightcc/collectives/grid/grid_stages.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {
namespace {

/// Elements are bytes.
class AllgatherStages final : public GridPartStages {
 public:
  AllgatherStages(const GridState& state,
                  const std::byte* in,
                  std::byte* out,
                  const std::vector<std::size_t>& bytes)
      : GridPartStages(state, bytes, 1), in_(in), out_(out) {}

  std::unique_ptr<Work> start_scatter(std::size_t) override { return nullptr; }
  std::unique_ptr<Work> start_exchange(std::size_t chunk, Group& group) override;
  std::unique_ptr<Work> start_gather(std::size_t chunk) override;

 private:
  const std::byte* in_;
  std::byte* out_;
};

std::unique_ptr<Work> AllgatherStages::start_exchange(std::size_t chunk, Group& group) {
  return state().on_columns(group, [&](std::size_t index, Group& others) {
    std::vector<std::size_t> bytes = column(chunk, index);
    return bytes.empty()
               ? nullptr
               : others.allgather(in_ + own_offset(chunk), stage(chunk, index), std::move(bytes));
  });
}

std::unique_ptr<Work> AllgatherStages::start_gather(std::size_t chunk) {
  std::vector<TensorSpan> spans;
  std::vector<std::size_t> bytes(state().members(), 0);
  std::vector<std::byte*> from = stages(chunk);
  for_each_part(chunk, [&](std::size_t share, ElementRange part) {
    const bool own = owner_of(share) == state().me();
    std::byte*& next = from[own ? share - state().first_share() : 0];
    spans.push_back({.in = own ? next : nullptr, .out = out_ + part.first, .count = part.count});
    next += own ? part.count : 0;
    bytes[owner_of(share)] += part.count;
  });
  return intra().allgather_bucket(std::move(spans), std::move(bytes), DataType::kUint8);
}

}  // namespace

std::unique_ptr<GridStages> make_allgather_stages(const GridState& state,
                                                  const std::byte* in,
                                                  std::byte* out,
                                                  const std::vector<std::size_t>& bytes) {
  return std::make_unique<AllgatherStages>(state, in, out, bytes);
}

}  // namespace lightcc
