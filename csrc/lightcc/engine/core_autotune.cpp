// Core's part in autotune: rank 0 measures what it announces, and announces what it decides.
#include <functional>
#include <memory>
#include <string>

#include "lightcc/control/agreement.hpp"
#include "lightcc/engine/core.hpp"
#include "lightcc/engine/grid_choice.hpp"

namespace lightcc {

void Core::set_up_autotune(const Knobs& knobs, FusionRule rule) {
  if (!knobs.autotune) {
    return;
  }
  AutotuneOptions options;
  options.start = {rule,
                   static_cast<std::uint64_t>(knobs.fusion_threshold_bytes),
                   static_cast<std::uint32_t>(knobs.num_lanes),
                   static_cast<std::uint64_t>(knobs.two_level_chunk_bytes)};
  options.rule_is_given = knobs.is_given("LIGHT_FUSION_STRATEGY");
  options.threshold_is_given = knobs.is_given("LIGHT_FUSION_THRESHOLD");
  options.most_lanes = options.start.lanes;
  options.chunk_matters = world_.transport != nullptr && !knobs.is_given("LIGHT_2D_CHUNK") &&
                          choose_grid(*process_sets()->find(kGlobalProcessSet),
                                      world_.host_of,
                                      knobs.two_level,
                                      knobs.intra_size)
                              .grid.has_value();
  options.warmup_samples = static_cast<int>(knobs.autotune_warmup_samples);
  options.steps_per_sample = static_cast<int>(knobs.autotune_steps_per_sample);
  options.most_settings = static_cast<int>(knobs.autotune_most_settings);
  autotuner_ = std::make_unique<Autotuner>(options);
  autotune_log_ = std::make_unique<AutotuneLog>(knobs.autotune_log);
}

void Core::autotune(const Execute& execute) {
  const TimePoint now = clock_.now();
  bool changed = false;
  for (const AnnouncedTensor& tensor : execute.tensors) {
    const bool by_slot = !tensor.signature.has_value();
    if (by_slot && tensor.slot >= slots_.size()) {
      continue;
    }
    const Signature& s = by_slot ? slots_[tensor.slot].signature : *tensor.signature;
    if (s.op != OpType::kAllreduce) {
      continue;
    }
    const std::size_t id = std::hash<std::string>()(s.name) ^ s.process_set;
    changed = autotuner_->on_tensor(id, byte_count(s), now) || changed;
  }
  for (const Autotuner::Sample& sample : autotuner_->take_log()) {
    autotune_log_->write(sample);
  }
  const bool done = autotuner_->done();
  if (changed || done) {
    sequencer_->tune({autotuner_->tuning(), done});
  }
  if (done) {
    autotuner_.reset();
    autotune_log_.reset();
  }
}

}  // namespace lightcc
