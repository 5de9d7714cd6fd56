#include "lightcc/engine/combine_inline.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/engine/grid_choice.hpp"

namespace lightcc {
namespace {

// Groups of more members combine in other orders (docs/architecture.md, "Numbers").
constexpr std::size_t kMaxOrdered = 16;

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
    const auto& blocks = blocks_of(signature.process_set, members);
    const Inputs all{inputs, inputs.size() / members.size()};
    return blocks.empty() || result.size() > two_level_max_bytes_
               ? combine_flat(all, members.size(), reduction, result)
               : combine_blocks(all, blocks, reduction, result);
  }

 private:
  using Blocks = std::vector<std::vector<std::size_t>>;  // Indices of members.

  struct Inputs {
    std::span<const std::byte> bytes;
    std::size_t stride;  // From one to the next.
    ReduceSource operator[](std::size_t index) const {
      return {.data = bytes.data() + index * stride, .prescale = true};
    }
  };

  bool combine_flat(const Inputs& inputs,
                    std::size_t members,
                    const Reduction& reduction,
                    std::span<std::byte> result) {
    if (members > kMaxOrdered) {
      return false;
    }
    sources_.clear();
    for (std::size_t i = 0; i < members; ++i) {
      sources_.push_back(inputs[i]);
    }
    run(reduction, result);
    return true;
  }

  bool combine_blocks(const Inputs& inputs,
                      const Blocks& blocks,
                      const Reduction& reduction,
                      std::span<std::byte> result) {
    if (blocks.size() > kMaxOrdered || blocks.front().size() > kMaxOrdered) {
      return false;
    }
    partial_.resize(blocks.size() * result.size());
    const auto partial = [&](std::size_t block) {
      return std::span(partial_).subspan(block * result.size(), result.size());
    };
    for (std::size_t block = 0; block < blocks.size(); ++block) {
      sources_.clear();
      for (const std::size_t member : blocks[block]) {
        sources_.push_back(inputs[member]);
      }
      run(within_blocks(reduction), partial(block));
    }
    sources_.clear();
    for (std::size_t block = 0; block < blocks.size(); ++block) {
      sources_.push_back({.data = partial(block).data(), .prescale = true});
    }
    run(between_blocks(reduction), result);
    return true;
  }

  void run(const Reduction& reduction, std::span<std::byte> result) {
    reduce(sources_,
           result.data(),
           nullptr,
           result.size() / element_size(reduction.dtype),
           reduction,
           simd_);
  }

  const Blocks& blocks_of(std::uint32_t process_set, const std::vector<std::int32_t>& members) {
    Known& known = known_[process_set];
    if (known.members == members) {
      return known.blocks;
    }
    known = {members, {}};
    const auto grid = may_have_grid_ ? choose_grid(members, host_of_, two_level_, intra_size_).grid
                                     : std::nullopt;
    for (std::size_t b = 0; grid.has_value() && b < grid->blocks.size(); ++b) {
      std::vector<std::size_t>& block = known.blocks.emplace_back();
      for (const std::int32_t rank : grid->blocks[b]) {
        block.push_back(
            static_cast<std::size_t>(std::ranges::lower_bound(members, rank) - members.begin()));
      }
    }
    return known.blocks;
  }

  struct Known {
    std::vector<std::int32_t> members;  // A set's number may come back for others.
    Blocks blocks;                      // Empty: all-reduces run flat.
  };

  const std::vector<int>& host_of_;
  bool may_have_grid_;
  std::optional<bool> two_level_;
  std::int64_t intra_size_;
  std::uint64_t two_level_max_bytes_;
  SimdLevel simd_;
  std::map<std::uint32_t, Known> known_;
  std::vector<ReduceSource> sources_;
  Bytes partial_;
};

}  // namespace

CombineInline make_combine_inline(const Membership& world, const Knobs& knobs, SimdLevel simd) {
  return Combiner(world, knobs, simd);
}

}  // namespace lightcc
