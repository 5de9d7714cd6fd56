#include "lightcc/compression/residual/regroup.hpp"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/residual/host_residual.hpp"
#include "lightcc/compression/residual/saved_tensor.hpp"
#include "lightcc/compression/residual/shard.hpp"

namespace lightcc {
namespace {

/// The state of a part, whose residual is as under another factor. `scaled` holds it where it
/// changes.
Result<std::span<const std::byte>> state_under(double factor,
                                               const SavedTensor& part,
                                               Bytes& scaled) {
  const std::optional<double> change = factor_change(part.factor, factor);
  if (!change) {
    return part.state;
  }
  LIGHTCC_ASSIGN_OR_RETURN(HostResidual state, HostResidual::load(part.state));
  LIGHTCC_RETURN_IF_ERROR(state.scale(*change));
  LIGHTCC_RETURN_IF_ERROR(state.save(scaled));
  return std::span<const std::byte>(scaled);
}

}  // namespace

Result<Bytes> regroup_residual(std::span<const std::byte> like,
                               std::span<const std::span<const std::byte>> parts,
                               const GridPosition& position) {
  LIGHTCC_ASSIGN_OR_RETURN(const SavedTensor first, parse_saved_tensor(like));
  Bytes bytes;
  if (first.of == ResidualOf::kScatteredRows) {
    // Rows of another grid are others: it begins at zero.
    LIGHTCC_ASSIGN_OR_RETURN(
        const auto zero,
        host_kernels().make_state(
            first.dtype, residual_elements(first.of, first.elements, position, first.dtype)));
    LIGHTCC_RETURN_IF_ERROR(zero->save(bytes));
    return write_saved_tensor(
        {first.of, position, first.dtype, first.elements, first.steps, first.factor, bytes});
  }
  std::set<std::pair<std::size_t, std::size_t>> seen;
  std::vector<HostResidual::Part> shards;
  std::vector<Bytes> scaled(parts.size());
  for (const auto& saved : parts) {
    LIGHTCC_ASSIGN_OR_RETURN(const SavedTensor part, parse_saved_tensor(saved));
    const GridPosition& from = part.position;
    if (part.elements != first.elements || part.dtype != first.dtype || part.steps != first.steps ||
        from.blocks != first.position.blocks || from.members != first.position.members) {
      return bad_saved_tensor("is not of the same tensor, step and grid as the others");
    }
    if (!seen.emplace(from.block, from.member).second) {
      return bad_saved_tensor("is there twice");
    }
    LIGHTCC_ASSIGN_OR_RETURN(const auto state,
                             state_under(first.factor, part, scaled[seen.size() - 1]));
    shards.push_back({state, shard_range(part.elements, from.members, from.member, part.dtype)});
  }
  const ShardRange mine =
      shard_range(first.elements, position.members, position.member, first.dtype);
  LIGHTCC_ASSIGN_OR_RETURN(const HostResidual state,
                           HostResidual::gather(first.state, shards, mine));
  LIGHTCC_RETURN_IF_ERROR(state.save(bytes));
  return write_saved_tensor(
      {first.of, position, first.dtype, first.elements, first.steps, first.factor, bytes});
}

}  // namespace lightcc
