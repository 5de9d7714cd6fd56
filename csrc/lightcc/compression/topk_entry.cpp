#include "lightcc/compression/topk_entry.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lightcc/compression/shard.hpp"

namespace lightcc {
namespace {

/// Of means: about so many steps count.
constexpr std::uint64_t kRecentSteps = 100;

}  // namespace

void CompressionUsage::add(const StepEnergy& one) {
  if (!std::isfinite(one.input) || !std::isfinite(one.kept)) {
    return;  // Squares of float64 may be too large.
  }
  const double share = 1.0 / static_cast<double>(std::min(++measured, kRecentSteps));
  energy.input += share * (one.input - energy.input);
  energy.kept += share * (one.kept - energy.kept);
}

void CompressionUsage::scale(double factor) {
  energy.input *= factor * factor;
  energy.kept *= factor * factor;
}

Result<std::shared_ptr<TopkEntry>> TopkEntry::load(const SavedEntry& saved, TopkKernels& kernels) {
  LIGHTCC_ASSIGN_OR_RETURN(std::unique_ptr<TopkShardState> state, kernels.load_state(saved.state));
  if (state->dtype() != saved.dtype ||
      state->numel() !=
          topk_shard(saved.elements, saved.position.members, saved.position.member, saved.dtype)
              .size_elems()) {
    return bad_saved_entry("does not fit the tensor it is of");
  }
  return std::make_shared<TopkEntry>(TopkEntry{.position = saved.position,
                                               .dtype = saved.dtype,
                                               .elements = saved.elements,
                                               .kernels = &kernels,
                                               .state = std::move(state),
                                               .steps = saved.steps,
                                               .usage = {},
                                               .send_factor = saved.factor});
}

bool TopkEntry::fits(const GridPosition& on, DataType type, std::size_t numel) const {
  return position == on && dtype == type && elements == numel;
}

Status TopkEntry::move_to(TopkKernels& to) {
  Bytes saved;
  LIGHTCC_RETURN_IF_ERROR(state->save(saved));
  LIGHTCC_ASSIGN_OR_RETURN(state, to.load_state(saved));
  kernels = &to;
  return {};
}

Result<Bytes> TopkEntry::save() const {
  Bytes kept;
  LIGHTCC_RETURN_IF_ERROR(state->save(kept));
  return write_saved_entry({position, dtype, elements, steps, send_factor, kept});
}

}  // namespace lightcc
