#include "lightcc/engine/combine_inline.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "lightcc/collectives/grid/grid_order.hpp"
#include "lightcc/collectives/grid/grid_shape.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/engine/grid_choice.hpp"

namespace lightcc {
namespace {

class Combiner {
 public:
  Combiner(const Membership& world, const Knobs& knobs, SimdLevel simd)
      : host_of_(world.host_of),
        may_have_grid_(world.transport != nullptr && knobs.two_level != false),
        two_level_(knobs.two_level),
        intra_size_(knobs.intra_size),
        two_level_max_bytes_(static_cast<std::uint64_t>(knobs.two_level_max_bytes)),
        simd_(simd) {}

  bool operator()(const Signature& signature,
                  const std::vector<std::int32_t>& members,
                  std::span<const std::byte> inputs,
                  std::span<std::byte> result) {
    const Reduction reduction = reduction_of(signature, members.size());
    if (!is_elementwise(reduction)) {
      return false;
    }
    const Known& known = known_of(signature.process_set, members);
    const Inputs all{inputs, inputs.size() / members.size()};
    if (!known.blocks.empty() && result.size() <= two_level_max_bytes_) {
      combine_blocks(all, known, reduction, result);
      return true;
    }
    sources_.clear();
    for (std::size_t i = 0; i < members.size(); ++i) {
      sources_.push_back(all[i]);
    }
    combine(sources_, known.widths, reduction, result);
    return true;
  }

 private:
  using Blocks = std::vector<std::vector<std::size_t>>;  // Indices of members.

  struct Known {
    std::vector<std::int32_t> members;  // A set's number may come back for others.
    std::vector<std::size_t> widths;    // How a flat group is arranged.
    Blocks blocks;                      // Empty: all-reduces run flat.
    std::vector<std::size_t> block_widths = {};
  };

  struct Inputs {
    std::span<const std::byte> bytes;
    std::size_t stride;  // From one to the next.
    ReduceSource operator[](std::size_t index) const {
      return {.data = bytes.data() + index * stride, .prescale = true};
    }
  };

  /// As a GridGroup does it.
  void combine_blocks(const Inputs& inputs,
                      const Known& known,
                      const Reduction& reduction,
                      std::span<std::byte> result) const {
    const Blocks& blocks = known.blocks;
    Bytes sums(blocks.size() * result.size());
    std::vector<ReduceSource> of_blocks;
    for (std::size_t block = 0; block < blocks.size(); ++block) {
      std::vector<ReduceSource> sources;
      for (const std::size_t member : blocks[block]) {
        sources.push_back(inputs[member]);
      }
      const auto sum = std::span(sums).subspan(block * result.size(), result.size());
      combine(sources, {}, within_blocks(reduction), sum);
      of_blocks.push_back({.data = sum.data(), .prescale = true});
    }
    combine(of_blocks, known.block_widths, between_blocks(reduction), result);
  }

  /// As a NetGroup does it whose levels have these widths, from the lowest up; none: one row.
  void combine(std::span<const ReduceSource> sources,
               std::span<const std::size_t> widths,
               const Reduction& reduction,
               std::span<std::byte> result) const {
    reduce_in_levels(sources,
                     widths,
                     result.data(),
                     nullptr,
                     result.size() / element_size(reduction.dtype),
                     reduction,
                     simd_);
  }

  const Known& known_of(std::uint32_t process_set, const std::vector<std::int32_t>& members) {
    Known& known = known_[process_set];
    if (known.members == members) {
      return known;
    }
    const auto host = [&](std::int32_t rank) { return host_of_[static_cast<std::size_t>(rank)]; };
    const bool share_memory = std::ranges::all_of(
        members, [&](std::int32_t rank) { return host(rank) == host(members.front()); });
    known = {.members = members,
             .widths = share_memory ? std::vector<std::size_t>() : grid_widths(members.size()),
             .blocks = {}};
    const auto grid = may_have_grid_ ? choose_grid(members, host_of_, two_level_, intra_size_).grid
                                     : std::nullopt;
    for (std::size_t b = 0; grid.has_value() && b < grid->blocks.size(); ++b) {
      std::vector<std::size_t>& block = known.blocks.emplace_back();
      for (const std::int32_t rank : grid->blocks[b]) {
        block.push_back(
            static_cast<std::size_t>(std::ranges::lower_bound(members, rank) - members.begin()));
      }
    }
    known.block_widths = grid_widths(known.blocks.size());
    return known;
  }

  const std::vector<int>& host_of_;
  bool may_have_grid_;
  std::optional<bool> two_level_;
  std::int64_t intra_size_;
  std::uint64_t two_level_max_bytes_;
  SimdLevel simd_;
  std::map<std::uint32_t, Known> known_;
  std::vector<ReduceSource> sources_;  // Kept for its memory.
};

}  // namespace

CombineInline make_combine_inline(const Membership& world, const Knobs& knobs, SimdLevel simd) {
  return Combiner(world, knobs, simd);
}

}  // namespace lightcc
