#include "lightcc/compression/residual/residual_store.hpp"

#include <cmath>
#include <optional>
#include <utility>

#include "lightcc/compression/residual/host_residual.hpp"

namespace lightcc {
namespace {

Status is_in_flight(const std::string& name) {
  return make_error(ErrorCode::kInvalidArgument,
                    "'%s' is being compressed right now: wait for it first",
                    name.c_str());
}

void say_dropped(const std::string& name) {
  LIGHTCC_LOG(LogLevel::kWarning,
              "'%s' changed its shape, its dtype or the grid it is reduced over: "
              "its residual is dropped",
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

Result<std::shared_ptr<TensorResidual>> TensorResidual::load(const SavedTensor& saved) {
  LIGHTCC_ASSIGN_OR_RETURN(std::unique_ptr<ShardResidual> state,
                           host_kernels().load_state(saved.state));
  if (state->dtype() != saved.dtype ||
      state->numel() != residual_elements(saved.of, saved.elements, saved.position, saved.dtype)) {
    return bad_saved_tensor("does not fit the tensor it is of");
  }
  return std::make_shared<TensorResidual>(TensorResidual{.of = saved.of,
                                                         .position = saved.position,
                                                         .dtype = saved.dtype,
                                                         .elements = saved.elements,
                                                         .kernels = &host_kernels(),
                                                         .state = std::move(state),
                                                         .steps = saved.steps,
                                                         .usage = {},
                                                         .send_factor = saved.factor});
}

bool TensorResidual::fits(ResidualOf kind,
                          const GridPosition& on,
                          DataType type,
                          std::size_t numel) const {
  return of == kind && position == on && dtype == type && elements == numel;
}

Status TensorResidual::move_to(CompressionKernels& to) {
  Bytes saved;
  LIGHTCC_RETURN_IF_ERROR(state->save(saved));
  LIGHTCC_ASSIGN_OR_RETURN(state, to.load_state(saved));
  kernels = &to;
  return {};
}

Result<Bytes> TensorResidual::save() const {
  Bytes kept;
  LIGHTCC_RETURN_IF_ERROR(state->save(kept));
  return write_saved_tensor({of, position, dtype, elements, steps, send_factor, kept});
}

Status TensorResidual::scale(double factor) {
  if (kernels != &host_kernels()) {
    LIGHTCC_RETURN_IF_ERROR(move_to(host_kernels()));
  }
  return state->on_host()->scale(factor);
}

Result<std::shared_ptr<TensorResidual>> ResidualStore::entry(const Key& key,
                                                             ResidualOf of,
                                                             const GridPosition& position,
                                                             DataType dtype,
                                                             std::size_t elements,
                                                             CompressionKernels& kernels) {
  std::shared_ptr<TensorResidual>& found = entries_[key];
  if (found != nullptr && found->fits(of, position, dtype, elements)) {
    if (found->kernels != &kernels) {
      LIGHTCC_RETURN_IF_ERROR(found->move_to(kernels));
    }
    return found;
  }
  if (found != nullptr) {
    say_dropped(key.second);
  }
  auto state = kernels.make_state(dtype, residual_elements(of, elements, position, dtype));
  if (!state.ok()) {
    entries_.erase(key);
    return no_state(key.second, elements, state.status());
  }
  found = std::make_shared<TensorResidual>(TensorResidual{.of = of,
                                                          .position = position,
                                                          .dtype = dtype,
                                                          .elements = elements,
                                                          .kernels = &kernels,
                                                          .state = std::move(*state),
                                                          .usage = {}});
  return found;
}

void ResidualStore::forget(std::uint32_t process_set) {
  std::erase_if(entries_, [&](const auto& item) { return item.first.first == process_set; });
}

void ResidualStore::log_once(const std::string& what, const std::string& why, LogLevel level) {
  if (logged_.insert(why).second) {
    LIGHTCC_LOG(level, "%s%s", what.c_str(), why.c_str());
  }
}

std::vector<TensorUsage> ResidualStore::usage() const {
  std::vector<TensorUsage> all;
  all.reserve(entries_.size());
  for (const auto& [key, entry] : entries_) {
    all.push_back({.process_set = key.first, .name = key.second, .usage = entry->usage});
  }
  return all;
}

Result<std::vector<std::pair<ResidualStore::Key, Bytes>>> ResidualStore::save() const {
  std::vector<std::pair<Key, Bytes>> all;
  for (const auto& [key, entry] : entries_) {
    if (entry->state->is_pending()) {
      return is_in_flight(key.second);
    }
    LIGHTCC_ASSIGN_OR_RETURN(Bytes bytes, entry->save());
    all.emplace_back(key, std::move(bytes));
  }
  return all;
}

Result<SavedTensor> ResidualStore::check(const Key& key, std::span<const std::byte> saved) const {
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second->state->is_pending()) {
    return is_in_flight(key.second);
  }
  LIGHTCC_ASSIGN_OR_RETURN(SavedTensor parsed, parse_saved_tensor(saved));
  LIGHTCC_RETURN_IF_ERROR(TensorResidual::load(parsed).status());
  return parsed;
}

Status ResidualStore::load(const Key& key, std::span<const std::byte> saved) {
  LIGHTCC_ASSIGN_OR_RETURN(const SavedTensor parsed, check(key, saved));
  LIGHTCC_ASSIGN_OR_RETURN(entries_[key], TensorResidual::load(parsed));
  return {};
}

Status ResidualStore::scale(double factor, std::span<const Key> keys) {
  if (!std::isfinite(factor) || factor <= 0.0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "gradients are scaled by %g: expected a finite number above 0",
                      factor);
  }
  std::vector<TensorResidual*> scaled;
  for (const Key& key : keys) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) {
      continue;  // Never compressed: it has no residual.
    }
    if (found->second->state->is_pending()) {
      return is_in_flight(key.second);
    }
    scaled.push_back(found->second.get());
  }
  for (TensorResidual* entry : scaled) {
    LIGHTCC_RETURN_IF_ERROR(entry->scale(factor));
    entry->usage.scale(factor);
  }
  return {};
}

Status ResidualStore::set_factor(const Key& key, double factor) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second->state->is_pending()) {
    return {};
  }
  TensorResidual& entry = *found->second;
  if (const std::optional<double> change = factor_change(entry.send_factor, factor)) {
    LIGHTCC_RETURN_IF_ERROR(entry.scale(*change));
  }
  entry.send_factor = factor;
  return {};
}

std::uint64_t ResidualStore::steps_of(const Key& key,
                                      const GridPosition& position,
                                      DataType dtype,
                                      std::size_t elements) const {
  const auto found = entries_.find(key);
  return found != entries_.end() &&
                 found->second->fits(ResidualOf::kShard, position, dtype, elements)
             ? found->second->steps
             : 0;
}

}  // namespace lightcc
