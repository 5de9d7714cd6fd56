#include "lightcc/compression/topk_entry.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "lightcc/compression/shard.hpp"

namespace lightcc {
namespace {

/// Of means: about so many steps count.
constexpr std::uint64_t kRecentSteps = 100;

Bytes bytes_of(const TopkEntry& entry, std::uint64_t steps, std::span<const std::byte> state) {
  return write_saved_entry(
      {entry.position, entry.dtype, entry.elements, steps, entry.send_factor, state});
}

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

std::optional<TopkSteps> TopkEntry::come_to() const {
  const std::optional<std::uint64_t> counted = state->step();
  return counted ? std::optional(TopkSteps{.steps = steps, .counted = *counted}) : std::nullopt;
}

Result<Bytes> TopkEntry::save() const {
  Bytes kept;
  LIGHTCC_RETURN_IF_ERROR(state->save(kept));
  return bytes_of(*this, steps, kept);
}

Status TopkEntry::keep_marked() {
  const std::optional<TopkSteps> now = come_to();
  if (!marked || !now || *now == *marked || !marked_state.empty()) {
    return {};
  }
  Bytes then;
  const std::optional<std::uint64_t> other = state->other_step();
  if (state_stayed && TopkSteps{now->steps - 1, now->counted} == *marked) {
    LIGHTCC_RETURN_IF_ERROR(state->save(then));
  } else if (other && TopkSteps{other_steps, *other} == *marked) {
    LIGHTCC_RETURN_IF_ERROR(state->save_other(then));
  } else {
    return {};
  }
  marked_state = bytes_of(*this, marked->steps, then);
  return {};
}

Status TopkEntry::go_on_at(std::uint64_t agreed) {
  const std::uint64_t change = agreed - std::exchange(steps, agreed);  // Modulo 2^64.
  other_steps += change;
  if (marked) {
    marked->steps += change;
  }
  if (!marked_state.empty()) {
    LIGHTCC_ASSIGN_OR_RETURN(SavedEntry then, parse_saved_entry(marked_state));
    then.steps += change;
    marked_state = write_saved_entry(then);
  }
  return {};
}

Result<std::vector<std::pair<TopkSteps, Bytes>>> TopkEntry::moments() const {
  std::vector<std::pair<TopkSteps, Bytes>> states;
  const std::optional<TopkSteps> now = come_to();
  if (!now || state->is_pending()) {
    return states;
  }
  const auto add = [&](const TopkSteps& at, const Bytes& kept) {
    states.emplace_back(at, bytes_of(*this, at.steps, kept));
  };
  Bytes kept;
  LIGHTCC_RETURN_IF_ERROR(state->save(kept));
  add(*now, kept);
  if (state_stayed) {
    add({.steps = now->steps - 1, .counted = now->counted}, kept);
  }
  if (is_cut_off) {  // Others may have found the step void.
    add({.steps = now->steps + 1, .counted = now->counted}, kept);
  }
  if (const auto other = state->other_step()) {
    kept.clear();
    LIGHTCC_RETURN_IF_ERROR(state->save_other(kept));
    add({.steps = other_steps, .counted = *other}, kept);
  }
  if (!marked_state.empty()) {
    states.emplace_back(*marked, marked_state);
  }
  return states;
}

}  // namespace lightcc
