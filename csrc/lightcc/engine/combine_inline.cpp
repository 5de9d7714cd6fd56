#include "lightcc/engine/combine_inline.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
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
      : world_(world),
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
    const bool in_blocks = !known.of_blocks.empty() && result.size() <= two_level_max_bytes_;
    const std::size_t stride = inputs.size() / members.size();  // From one to the next.
    sources_.clear();
    for (std::size_t i = 0; i < members.size(); ++i) {
      sources_.push_back({.data = inputs.data() + i * stride, .prescale = true});
    }
    combine_tiers(sources_, in_blocks ? known.of_blocks : known.flat, reduction, result);
    return true;
  }

 private:
  using Tiers = std::vector<GridTier>;

  struct Known {
    std::vector<std::int32_t> members;  // A set's number may come back for others.
    Tiers flat;
    Tiers of_blocks = {};  // The lowest one has the blocks. Empty: all-reduces run flat.
  };

  /// As a NetGroup does it whose members have these tiers, or a GridGroup whose blocks do.
  void combine_tiers(std::span<const ReduceSource> sources,
                     std::span<const GridTier> tiers,
                     const Reduction& reduction,
                     std::span<std::byte> result) const {
    const GridTier& lowest = tiers.front();
    if (tiers.size() == 1) {
      combine(sources, lowest.widths, reduction, result);
      return;
    }
    Bytes sums(lowest.switches.size() * result.size());
    std::vector<ReduceSource> of_switches;
    for (const std::vector<std::size_t>& members : lowest.switches) {
      std::vector<ReduceSource> within;
      within.reserve(members.size());
      for (const std::size_t member : members) {
        within.push_back(sources[member]);
      }
      const auto sum = std::span(sums).subspan(of_switches.size() * result.size(), result.size());
      combine(within, lowest.widths, within_blocks(reduction), sum);
      of_switches.push_back({.data = sum.data(), .prescale = true});
    }
    combine_tiers(of_switches, tiers.subspan(1), between_blocks(reduction), result);
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

  Tiers tiers_of(const std::vector<std::int32_t>& ranks) const {
    std::vector<std::string> paths;
    paths.reserve(ranks.size());
    for (const std::int32_t rank : ranks) {
      paths.push_back(world_.switches_of(rank));
    }
    return grid_tiers(std::move(paths));
  }

  const Known& known_of(std::uint32_t process_set, const std::vector<std::int32_t>& members) {
    Known& known = known_[process_set];
    if (known.members == members) {
      return known;
    }
    const auto host = [&](std::int32_t rank) {
      return world_.host_of[static_cast<std::size_t>(rank)];
    };
    const bool share_memory = std::ranges::all_of(
        members, [&](std::int32_t rank) { return host(rank) == host(members.front()); });
    known = {.members = members, .flat = share_memory ? Tiers(1) : tiers_of(members)};
    if (!may_have_grid_) {
      return known;
    }
    if (const auto grid = choose_grid(members, world_.host_of, two_level_, intra_size_).grid) {
      std::vector<std::int32_t> first_members;
      for (const std::vector<std::int32_t>& block : grid->blocks) {
        first_members.push_back(block.front());
      }
      known.of_blocks = tiers_of(first_members);
      const GridTier blocks{.switches = shape_of(*grid, members).rows, .widths = {}};
      known.of_blocks.insert(known.of_blocks.begin(), blocks);
    }
    return known;
  }

  const Membership& world_;
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
