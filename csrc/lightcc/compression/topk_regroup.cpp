#include "lightcc/compression/topk_regroup.hpp"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lightcc/compression/saved_entry.hpp"
#include "lightcc/compression/shard.hpp"
#include "lightcc/compression/topk_state.hpp"

namespace lightcc {
namespace {

/// The state of a part, kept back as under another factor. `scaled` holds it where it changes.
Result<std::span<const std::byte>> state_under(double factor,
                                               const SavedEntry& part,
                                               Bytes& scaled) {
  const std::optional<double> change = factor_change(part.factor, factor);
  if (!change) {
    return part.state;
  }
  LIGHTCC_ASSIGN_OR_RETURN(TopkState state, TopkState::load(part.state));
  LIGHTCC_RETURN_IF_ERROR(state.scale(*change));
  LIGHTCC_RETURN_IF_ERROR(state.save(scaled));
  return std::span<const std::byte>(scaled);
}

}  // namespace

Result<Bytes> regroup_topk(std::span<const std::byte> like,
                           std::span<const std::span<const std::byte>> parts,
                           const GridPosition& position) {
  LIGHTCC_ASSIGN_OR_RETURN(const SavedEntry first, parse_saved_entry(like));
  std::set<std::pair<std::size_t, std::size_t>> seen;
  std::vector<TopkState::SavedShard> shards;
  std::vector<Bytes> scaled(parts.size());
  for (const auto& bytes : parts) {
    LIGHTCC_ASSIGN_OR_RETURN(const SavedEntry part, parse_saved_entry(bytes));
    const GridPosition& from = part.position;
    if (part.elements != first.elements || part.dtype != first.dtype || part.steps != first.steps ||
        from.blocks != first.position.blocks || from.members != first.position.members) {
      return bad_saved_entry("is not of the same tensor, step and grid as the others");
    }
    if (!seen.emplace(from.block, from.member).second) {
      return bad_saved_entry("is there twice");
    }
    LIGHTCC_ASSIGN_OR_RETURN(const auto state,
                             state_under(first.factor, part, scaled[seen.size() - 1]));
    shards.push_back({state, topk_shard(part.elements, from.members, from.member, part.dtype)});
  }
  Bytes bytes;
  const ShardRange mine =
      topk_shard(first.elements, position.members, position.member, first.dtype);
  LIGHTCC_ASSIGN_OR_RETURN(const TopkState state, TopkState::gather(first.state, shards, mine));
  LIGHTCC_RETURN_IF_ERROR(state.save(bytes));
  return write_saved_entry(
      {position, first.dtype, first.elements, first.steps, first.factor, bytes});
}

}  // namespace lightcc
