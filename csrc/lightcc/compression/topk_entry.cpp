#include "lightcc/compression/topk_entry.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "lightcc/compression/shard.hpp"

namespace lightcc {
namespace {

/// Of means: about so many steps count.
constexpr std::uint64_t kRecentSteps = 100;

// Of whichever state is there.

Status save_state(const TopkEntry& entry, Bytes& out) {
  return entry.low_rank != nullptr ? entry.low_rank->save(out) : entry.state->save(out);
}

std::optional<std::uint64_t> other_step(const TopkEntry& entry) {
  return entry.low_rank != nullptr ? entry.low_rank->other_step() : entry.state->other_step();
}

Status save_other_state(const TopkEntry& entry, Bytes& out) {
  return entry.low_rank != nullptr ? entry.low_rank->save_other(out) : entry.state->save_other(out);
}

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
  if (LowRankState::is_saved(saved.state)) {
    LIGHTCC_ASSIGN_OR_RETURN(LowRankState state, kernels.load_low_rank_state(saved.state));
    if (state.dtype() != saved.dtype || state.numel() != saved.elements) {
      return bad_saved_entry("does not fit the tensor it is of");
    }
    return std::make_shared<TopkEntry>(
        TopkEntry{.position = saved.position,
                  .dtype = saved.dtype,
                  .elements = saved.elements,
                  .kernels = &kernels,
                  .state = nullptr,
                  .low_rank = std::make_unique<LowRankState>(std::move(state)),
                  .steps = saved.steps,
                  .usage = {},
                  .send_factor = saved.factor});
  }
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
                                               .low_rank = nullptr,
                                               .steps = saved.steps,
                                               .usage = {},
                                               .send_factor = saved.factor});
}

bool TopkEntry::fits(const GridPosition& on, DataType type, std::size_t numel) const {
  return state != nullptr && position == on && dtype == type && elements == numel;
}

bool TopkEntry::fits(const GridPosition& on, DataType type, const MatrixShape& matrix) const {
  return low_rank != nullptr && position == on && dtype == type && low_rank->matrix() == matrix;
}

Status TopkEntry::move_to(TopkKernels& to) {
  Bytes saved;
  LIGHTCC_RETURN_IF_ERROR(save_state(*this, saved));
  if (low_rank != nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(*low_rank, to.load_low_rank_state(saved));
  } else {
    LIGHTCC_ASSIGN_OR_RETURN(state, to.load_state(saved));
  }
  kernels = &to;
  return {};
}

bool TopkEntry::is_pending() const {
  return low_rank != nullptr ? low_rank->is_pending() : state->is_pending();
}

std::optional<TopkSteps> TopkEntry::come_to() const {
  const std::optional<std::uint64_t> counted =
      low_rank != nullptr ? low_rank->step() : state->step();
  return counted ? std::optional(TopkSteps{.steps = steps, .counted = *counted}) : std::nullopt;
}

// NOLINTNEXTLINE(readability-make-member-function-const): what it owns changes.
Status TopkEntry::scale(double factor) {
  return low_rank != nullptr ? low_rank->scale(factor) : state->scale(factor);
}

Result<Bytes> TopkEntry::save() const {
  Bytes kept;
  LIGHTCC_RETURN_IF_ERROR(save_state(*this, kept));
  return bytes_of(*this, steps, kept);
}

Status TopkEntry::keep_marked() {
  const std::optional<TopkSteps> now = come_to();
  if (!marked || !now || *now == *marked || !marked_state.empty()) {
    return {};
  }
  Bytes then;
  const std::optional<std::uint64_t> other = other_step(*this);
  if (state_stayed && TopkSteps{now->steps - 1, now->counted} == *marked) {
    LIGHTCC_RETURN_IF_ERROR(save_state(*this, then));
  } else if (other && TopkSteps{other_steps, *other} == *marked) {
    LIGHTCC_RETURN_IF_ERROR(save_other_state(*this, then));
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
  if (!now || is_pending()) {
    return states;
  }
  const auto add = [&](const TopkSteps& at, const Bytes& kept) {
    states.emplace_back(at, bytes_of(*this, at.steps, kept));
  };
  Bytes kept;
  LIGHTCC_RETURN_IF_ERROR(save_state(*this, kept));
  add(*now, kept);
  if (state_stayed) {
    add({.steps = now->steps - 1, .counted = now->counted}, kept);
  }
  if (is_cut_off) {  // Others may have found the step void.
    add({.steps = now->steps + 1, .counted = now->counted}, kept);
  }
  if (const auto other = other_step(*this)) {
    kept.clear();
    LIGHTCC_RETURN_IF_ERROR(save_other_state(*this, kept));
    add({.steps = other_steps, .counted = *other}, kept);
  }
  if (!marked_state.empty()) {
    states.emplace_back(*marked, marked_state);
  }
  return states;
}

}  // namespace lightcc
