// All-gather: members with the same position in their blocks exchange their own parts, then every
// block shares what its members received. There is no first stage: a part crosses to each block
// once, carried by the member that has it.
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
  std::vector<std::size_t> bytes = column(chunk);
  if (bytes.empty()) {
    return nullptr;
  }
  return group.allgather(in_ + own_offset(chunk), stage(chunk), std::move(bytes));
}

std::unique_ptr<Work> AllgatherStages::start_gather(std::size_t chunk) {
  std::vector<TensorSpan> spans;
  std::vector<std::size_t> bytes(state().members(), 0);
  const std::byte* from = stage(chunk);
  for (std::size_t member = 0; member < state().members(); ++member) {
    const bool own = member == state().me();
    for (std::size_t block = 0; block < state().blocks(); ++block) {
      const ElementRange part = piece(chunk, block, member);
      spans.push_back({.in = own ? from : nullptr, .out = out_ + part.first, .count = part.count});
      from += own ? part.count : 0;
      bytes[member] += part.count;
    }
  }
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
