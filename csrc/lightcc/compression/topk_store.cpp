#include "lightcc/compression/topk_store.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "lightcc/compression/shard.hpp"

namespace lightcc {
namespace {

constexpr std::uint8_t kSavedVersion = 2;
constexpr std::uint8_t kSavedWithoutFactor = 1;

std::size_t shard_size(const GridPosition& position, DataType dtype, std::size_t elements) {
  return topk_shard(elements, position.members, position.member, dtype).size_elems();
}

Status is_in_flight(const std::string& name) {
  return make_error(ErrorCode::kInvalidArgument,
                    "'%s' is being compressed right now: wait for it first",
                    name.c_str());
}

/// What was saved of one tensor, its state not looked at.
struct Saved {
  GridPosition position;
  DataType dtype = DataType::kFloat32;
  std::size_t elements = 0;
  std::uint64_t steps = 0;
  double factor = 0.0;  ///< TopkEntry::send_factor.
  std::span<const std::byte> state;
};

Status damaged(const char* what) {
  return make_error(ErrorCode::kInvalidArgument, "saved compression state %s", what);
}

void put(ByteWriter& out, const Saved& saved) {
  out.number(kSavedVersion);
  out.number(static_cast<std::uint8_t>(saved.dtype));
  out.varint(saved.elements);
  out.varint(saved.position.blocks);
  out.varint(saved.position.block);
  out.varint(saved.position.members);
  out.varint(saved.position.member);
  out.varint(saved.steps);
  out.number(saved.factor);
  out.raw(saved.state);
}

Saved saved_of(const TopkEntry& entry, std::uint64_t steps, std::span<const std::byte> state) {
  return {entry.position, entry.dtype, entry.elements, steps, entry.send_factor, state};
}

Result<Saved> get_saved(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto version = in.number<std::uint8_t>();
  if ((version != kSavedVersion && version != kSavedWithoutFactor) || !in.ok()) {
    return damaged("is of another version of lightcc");
  }
  Saved saved;
  const auto dtype = in.number<std::uint8_t>();
  saved.elements = static_cast<std::size_t>(in.varint());
  saved.position.blocks = static_cast<std::size_t>(in.varint());
  saved.position.block = static_cast<std::size_t>(in.varint());
  saved.position.members = static_cast<std::size_t>(in.varint());
  saved.position.member = static_cast<std::size_t>(in.varint());
  saved.steps = in.varint();
  saved.factor = version == kSavedVersion ? in.number<double>() : 0.0;
  saved.state = in.raw(in.remaining());
  const GridPosition& position = saved.position;
  if (!in.ok() || dtype >= kDataTypeCount || !is_floating_point(static_cast<DataType>(dtype)) ||
      position.block >= position.blocks || position.member >= position.members ||
      position.members > kTopkMaxMembers) {
    return damaged("is damaged");
  }
  saved.dtype = static_cast<DataType>(dtype);
  return saved;
}

Result<std::shared_ptr<TopkEntry>> entry_of(const Saved& saved, TopkKernels& kernels) {
  if (LowRankState::is_saved(saved.state)) {
    LIGHTCC_ASSIGN_OR_RETURN(LowRankState state, kernels.load_low_rank_state(saved.state));
    if (state.dtype() != saved.dtype || state.numel() != saved.elements) {
      return damaged("does not fit the tensor it is of");
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
      state->numel() != shard_size(saved.position, saved.dtype, saved.elements)) {
    return damaged("does not fit the tensor it is of");
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

/// By what what is kept back under a factor is multiplied where another one takes its place;
/// nothing where it stays.
std::optional<double> change_of(double from, double to) {
  const double change = from / to;
  return from != to && std::isfinite(change) && change > 0.0 ? std::optional(change) : std::nullopt;
}

/// The state of a part, kept back as under another factor. `scaled` holds it where it changes.
Result<std::span<const std::byte>> state_under(double factor, const Saved& part, Bytes& scaled) {
  const std::optional<double> change = change_of(part.factor, factor);
  if (!change) {
    return part.state;
  }
  if (LowRankState::is_saved(part.state)) {
    LIGHTCC_ASSIGN_OR_RETURN(LowRankState state, LowRankState::load(part.state));
    LIGHTCC_RETURN_IF_ERROR(state.scale(*change));
    LIGHTCC_RETURN_IF_ERROR(state.save(scaled));
  } else {
    LIGHTCC_ASSIGN_OR_RETURN(TopkState state, TopkState::load(part.state));
    LIGHTCC_RETURN_IF_ERROR(state.scale(*change));
    LIGHTCC_RETURN_IF_ERROR(state.save(scaled));
  }
  return std::span<const std::byte>(scaled);
}

bool fits(const TopkEntry& entry,
          const GridPosition& position,
          DataType dtype,
          std::size_t elements) {
  return entry.state != nullptr && entry.position == position && entry.dtype == dtype &&
         entry.elements == elements;
}

bool fits_low_rank(const TopkEntry& entry,
                   const GridPosition& position,
                   DataType dtype,
                   const MatrixShape& matrix) {
  return entry.low_rank != nullptr && entry.position == position && entry.dtype == dtype &&
         entry.low_rank->matrix() == matrix;
}

Status move_to(TopkKernels& kernels, TopkEntry& entry) {
  Bytes saved;
  LIGHTCC_RETURN_IF_ERROR(entry.save(saved));
  if (entry.low_rank != nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(*entry.low_rank, kernels.load_low_rank_state(saved));
  } else {
    LIGHTCC_ASSIGN_OR_RETURN(entry.state, kernels.load_state(saved));
  }
  entry.kernels = &kernels;
  return {};
}

/// Of means: about so many steps count.
constexpr std::uint64_t kRecentSteps = 100;

void say_dropped(const std::string& name) {
  LIGHTCC_LOG(LogLevel::kWarning,
              "'%s' changed its shape, its dtype, its compressor or the grid it is reduced over: "
              "what compression kept back of it is dropped",
              name.c_str());
}

Status no_state(const std::string& name, std::size_t elements, const Status& why) {
  return make_error(why.code(),
                    "compression of '%s', of %zu elements: %s",
                    name.c_str(),
                    elements,
                    why.message().c_str());
}

}  // namespace

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

Status TopkEntry::save(Bytes& out) const {
  return low_rank != nullptr ? low_rank->save(out) : state->save(out);
}

std::optional<std::uint64_t> TopkEntry::other_step() const {
  return low_rank != nullptr ? low_rank->other_step() : state->other_step();
}

Status TopkEntry::save_other(Bytes& out) const {
  return low_rank != nullptr ? low_rank->save_other(out) : state->save_other(out);
}

Status TopkEntry::keep_marked() {
  const std::optional<TopkSteps> now = come_to();
  if (!marked || !now || *now == *marked || !marked_state.empty()) {
    return {};
  }
  Bytes then;
  const std::optional<std::uint64_t> other = other_step();
  if (state_stayed && TopkSteps{now->steps - 1, now->counted} == *marked) {
    LIGHTCC_RETURN_IF_ERROR(save(then));
  } else if (other && TopkSteps{other_steps, *other} == *marked) {
    LIGHTCC_RETURN_IF_ERROR(save_other(then));
  } else {
    return {};
  }
  ByteWriter out(marked_state);
  put(out, saved_of(*this, marked->steps, then));
  return {};
}

Status TopkEntry::go_on_at(std::uint64_t agreed) {
  const std::uint64_t change = agreed - std::exchange(steps, agreed);  // Modulo 2^64.
  other_steps += change;
  if (marked) {
    marked->steps += change;
  }
  if (!marked_state.empty()) {
    LIGHTCC_ASSIGN_OR_RETURN(Saved then, get_saved(marked_state));
    then.steps += change;
    Bytes moved;
    ByteWriter out(moved);
    put(out, then);
    marked_state = std::move(moved);
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
    Bytes bytes;
    ByteWriter out(bytes);
    put(out, saved_of(*this, at.steps, kept));
    states.emplace_back(at, std::move(bytes));
  };
  Bytes kept;
  LIGHTCC_RETURN_IF_ERROR(save(kept));
  add(*now, kept);
  if (state_stayed) {
    add({.steps = now->steps - 1, .counted = now->counted}, kept);
  }
  if (is_cut_off) {  // Others may have found the step void.
    add({.steps = now->steps + 1, .counted = now->counted}, kept);
  }
  if (const auto other = other_step()) {
    kept.clear();
    LIGHTCC_RETURN_IF_ERROR(save_other(kept));
    add({.steps = other_steps, .counted = *other}, kept);
  }
  if (!marked_state.empty()) {
    states.emplace_back(*marked, marked_state);
  }
  return states;
}

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

Result<std::shared_ptr<TopkEntry>> TopkStore::entry(const Key& key,
                                                    const GridPosition& position,
                                                    DataType dtype,
                                                    std::size_t elements,
                                                    TopkKernels& kernels) {
  std::shared_ptr<TopkEntry>& found = entries_[key];
  if (found != nullptr && fits(*found, position, dtype, elements)) {
    if (found->kernels != &kernels) {
      LIGHTCC_RETURN_IF_ERROR(found->keep_marked());  // Of two sides, one moves.
      LIGHTCC_RETURN_IF_ERROR(move_to(kernels, *found));
    }
    return found;
  }
  if (found != nullptr) {
    say_dropped(key.second);
  }
  auto state = kernels.make_state(dtype, shard_size(position, dtype, elements));
  if (!state.ok()) {
    entries_.erase(key);
    return no_state(key.second, elements, state.status());
  }
  found = std::make_shared<TopkEntry>(TopkEntry{.position = position,
                                                .dtype = dtype,
                                                .elements = elements,
                                                .kernels = &kernels,
                                                .state = std::move(*state),
                                                .low_rank = nullptr,
                                                .usage = {}});
  return found;
}

Result<std::shared_ptr<TopkEntry>> TopkStore::low_rank_entry(const Key& key,
                                                             const GridPosition& position,
                                                             DataType dtype,
                                                             const MatrixShape& matrix,
                                                             std::size_t rank,
                                                             TopkKernels& kernels) {
  std::shared_ptr<TopkEntry>& found = entries_[key];
  if (found != nullptr && fits_low_rank(*found, position, dtype, matrix)) {
    if (found->kernels != &kernels) {
      LIGHTCC_RETURN_IF_ERROR(move_to(kernels, *found));
    }
    LIGHTCC_RETURN_IF_ERROR(found->low_rank->set_rank(rank));
    return found;
  }
  if (found != nullptr) {
    say_dropped(key.second);
  }
  auto state = kernels.make_low_rank_state(dtype, matrix, rank);
  if (!state.ok()) {
    entries_.erase(key);
    return no_state(key.second, matrix.rows * matrix.cols, state.status());
  }
  found = std::make_shared<TopkEntry>(
      TopkEntry{.position = position,
                .dtype = dtype,
                .elements = matrix.rows * matrix.cols,
                .kernels = &kernels,
                .state = nullptr,
                .low_rank = std::make_unique<LowRankState>(std::move(*state)),
                .usage = {}});
  return found;
}

void TopkStore::forget(std::uint32_t process_set) {
  std::erase_if(entries_, [&](const auto& item) { return item.first.first == process_set; });
}

void TopkStore::say_once(const std::string& what, const std::string& why, LogLevel level) {
  if (said_.insert(why).second) {
    LIGHTCC_LOG(level, "%s%s", what.c_str(), why.c_str());
  }
}

std::vector<TensorUsage> TopkStore::usage() const {
  std::vector<TensorUsage> all;
  all.reserve(entries_.size());
  for (const auto& [key, entry] : entries_) {
    all.push_back({.process_set = key.first, .name = key.second, .usage = entry->usage});
  }
  return all;
}

Result<std::vector<std::pair<TopkStore::Key, Bytes>>> TopkStore::save() const {
  std::vector<std::pair<Key, Bytes>> all;
  for (const auto& [key, entry] : entries_) {
    if (entry->is_pending()) {
      return is_in_flight(key.second);
    }
    Bytes state;
    LIGHTCC_RETURN_IF_ERROR(entry->save(state));
    Bytes bytes;
    ByteWriter out(bytes);
    put(out, saved_of(*entry, entry->steps, state));
    all.emplace_back(key, std::move(bytes));
  }
  return all;
}

void TopkStore::mark() {
  for (const auto& [key, entry] : entries_) {
    entry->marked_state = {};
    // Where the plane does not count, steps that no rank has.
    entry->marked = entry->come_to().value_or(
        TopkSteps{.steps = entry->steps, .counted = std::numeric_limits<std::uint64_t>::max()});
    if (entry->low_rank != nullptr) {
      entry->low_rank->keep_other();
    }
  }
}

std::vector<std::pair<TopkStore::Key, TopkMoments>> TopkStore::moments() const {
  std::vector<std::pair<Key, TopkMoments>> all;
  all.reserve(entries_.size());
  for (const auto& [key, entry] : entries_) {
    auto states = entry->moments();
    if (!states.ok()) {
      LIGHTCC_LOG(LogLevel::kWarning,
                  "what compression kept back of '%s' is lost: %s",
                  key.second.c_str(),
                  states.status().message().c_str());
    }
    all.emplace_back(
        key,
        TopkMoments{.marked = entry->marked,
                    .states = states.ok() ? std::move(*states) : decltype(TopkMoments::states)()});
  }
  return all;
}

Result<std::shared_ptr<TopkEntry>> TopkStore::parse(const Key& key,
                                                    std::span<const std::byte> saved) const {
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second->is_pending()) {
    return is_in_flight(key.second);
  }
  LIGHTCC_ASSIGN_OR_RETURN(const Saved parsed, get_saved(saved));
  return entry_of(parsed, kernels_);
}

Result<TopkSavedTensor> TopkStore::check(const Key& key, std::span<const std::byte> saved) const {
  LIGHTCC_ASSIGN_OR_RETURN(const std::shared_ptr<TopkEntry> entry, parse(key, saved));
  return TopkSavedTensor{.dtype = entry->dtype, .elements = entry->elements, .steps = entry->steps};
}

Status TopkStore::load(const Key& key, std::span<const std::byte> saved) {
  LIGHTCC_ASSIGN_OR_RETURN(std::shared_ptr<TopkEntry> entry, parse(key, saved));
  entries_[key] = std::move(entry);
  return {};
}

Status TopkStore::scale(double factor, std::span<const Key> keys) {
  if (!std::isfinite(factor) || factor <= 0.0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "gradients are scaled by %g: expected a finite number above 0",
                      factor);
  }
  std::vector<TopkEntry*> scaled;
  for (const Key& key : keys) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) {
      continue;  // Never compressed: nothing is kept back.
    }
    if (found->second->is_pending()) {
      return is_in_flight(key.second);
    }
    scaled.push_back(found->second.get());
  }
  for (TopkEntry* entry : scaled) {
    LIGHTCC_RETURN_IF_ERROR(bring_home(*entry));
    LIGHTCC_RETURN_IF_ERROR(entry->scale(factor));
    entry->usage.scale(factor);
  }
  return {};
}

Status TopkStore::set_factor(const Key& key, double factor) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second->is_pending()) {
    return {};
  }
  TopkEntry& entry = *found->second;
  if (const std::optional<double> change = change_of(entry.send_factor, factor)) {
    LIGHTCC_RETURN_IF_ERROR(entry.keep_marked());
    LIGHTCC_RETURN_IF_ERROR(bring_home(entry));
    LIGHTCC_RETURN_IF_ERROR(entry.scale(*change));
  }
  entry.send_factor = factor;
  return {};
}

Status TopkStore::bring_home(TopkEntry& entry) const {
  return entry.kernels == &kernels_ ? Status() : move_to(kernels_, entry);
}

std::uint64_t TopkStore::steps_of(const Key& key,
                                  const GridPosition& position,
                                  DataType dtype,
                                  std::size_t elements) const {
  const auto found = entries_.find(key);
  return found != entries_.end() && fits(*found->second, position, dtype, elements)
             ? found->second->steps
             : 0;
}

std::uint64_t TopkStore::low_rank_steps_of(const Key& key,
                                           const GridPosition& position,
                                           DataType dtype,
                                           const MatrixShape& matrix) const {
  const auto found = entries_.find(key);
  return found != entries_.end() && fits_low_rank(*found->second, position, dtype, matrix)
             ? found->second->steps
             : 0;
}

Result<Bytes> reshard_topk(std::span<const std::span<const std::byte>> saved,
                           const GridPosition& position) {
  std::vector<Saved> parts;
  std::vector<std::span<const std::byte>> states;
  std::vector<Bytes> scaled(saved.size());
  for (const auto& bytes : saved) {
    LIGHTCC_ASSIGN_OR_RETURN(const Saved part, get_saved(bytes));
    const bool fits =
        part.position.member == parts.size() && part.position.members == saved.size() &&
        part.position.blocks == position.blocks && part.position.block == position.block &&
        (parts.empty() || (part.elements == parts[0].elements && part.dtype == parts[0].dtype &&
                           part.steps == parts[0].steps));
    if (!fits) {
      return damaged("is not that of all members of one block, in their order");
    }
    const double factor = parts.empty() ? part.factor : parts[0].factor;
    LIGHTCC_ASSIGN_OR_RETURN(const auto state, state_under(factor, part, scaled[parts.size()]));
    states.push_back(state);
    parts.push_back(part);
  }
  if (parts.empty()) {
    return damaged("is empty");
  }
  Bytes bytes;
  if (LowRankState::is_saved(states.front())) {
    LIGHTCC_ASSIGN_OR_RETURN(const LowRankState state,
                             LowRankState::reshard(states, position.members, position.member));
    LIGHTCC_RETURN_IF_ERROR(state.save(bytes));
  } else {
    LIGHTCC_ASSIGN_OR_RETURN(const TopkState state,
                             TopkState::reshard(states, position.members, position.member));
    LIGHTCC_RETURN_IF_ERROR(state.save(bytes));
  }
  Bytes result;
  ByteWriter out(result);
  put(out, {position, parts[0].dtype, parts[0].elements, parts[0].steps, parts[0].factor, bytes});
  return result;
}

Result<Bytes> regroup_topk(std::span<const std::byte> like,
                           std::span<const std::span<const std::byte>> parts,
                           const GridPosition& position) {
  LIGHTCC_ASSIGN_OR_RETURN(const Saved first, get_saved(like));
  const bool is_low_rank = LowRankState::is_saved(first.state);
  std::set<std::pair<std::size_t, std::size_t>> seen;
  std::vector<TopkState::SavedShard> shards;
  std::vector<std::span<const std::byte>> matrices;
  std::vector<Bytes> scaled(parts.size());
  for (const auto& bytes : parts) {
    LIGHTCC_ASSIGN_OR_RETURN(const Saved part, get_saved(bytes));
    const GridPosition& from = part.position;
    if (part.elements != first.elements || part.dtype != first.dtype || part.steps != first.steps ||
        LowRankState::is_saved(part.state) != is_low_rank || from.blocks != first.position.blocks ||
        from.members != first.position.members) {
      return damaged("is not of the same tensor, step and grid as the others");
    }
    if (!seen.emplace(from.block, from.member).second) {
      return damaged("is there twice");
    }
    LIGHTCC_ASSIGN_OR_RETURN(const auto state,
                             state_under(first.factor, part, scaled[seen.size() - 1]));
    if (!is_low_rank) {
      shards.push_back({state, topk_shard(part.elements, from.members, from.member, part.dtype)});
    } else if (from.member % position.members == position.member) {
      matrices.push_back(state);
    }
  }
  Bytes bytes;
  if (is_low_rank) {
    LIGHTCC_ASSIGN_OR_RETURN(const LowRankState state, LowRankState::gather(first.state, matrices));
    LIGHTCC_RETURN_IF_ERROR(state.save(bytes));
  } else {
    const ShardRange mine =
        topk_shard(first.elements, position.members, position.member, first.dtype);
    LIGHTCC_ASSIGN_OR_RETURN(const TopkState state, TopkState::gather(first.state, shards, mine));
    LIGHTCC_RETURN_IF_ERROR(state.save(bytes));
  }
  Bytes result;
  ByteWriter out(result);
  put(out, {position, first.dtype, first.elements, first.steps, first.factor, bytes});
  return result;
}

}  // namespace lightcc
