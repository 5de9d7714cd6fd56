#include "lightcc/fusion/autotuner.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lightcc {
namespace {

constexpr std::size_t kScores = 5;
constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;

enum Dimension : std::size_t { kFusion, kLanes, kChunk };

/// `base` with the dimension's value from `value`.
Tuning with(Tuning base, std::size_t dimension, const Tuning& value) {
  switch (dimension) {
    case kFusion:
      base.rule = value.rule;
      base.threshold_bytes = value.threshold_bytes;
      break;
    case kLanes:
      base.lanes = value.lanes;
      break;
    default:
      base.chunk_bytes = value.chunk_bytes;
  }
  return base;
}

std::vector<std::vector<Tuning>> values_of(const AutotuneOptions& options) {
  std::vector<std::vector<Tuning>> values(3);
  const Tuning& start = options.start;
  const auto add = [&](Dimension dimension, Tuning tuning) {
    if (tuning != start) {
      values[dimension].push_back(tuning);
    }
  };
  Tuning fusion = start;
  const bool is_auto = start.rule == FusionRule::kAuto;
  if (!options.threshold_is_given && (is_auto || !options.rule_is_given)) {
    fusion.rule = FusionRule::kAuto;
    for (const std::uint64_t mebi : {1U, 4U, 16U, 64U, 256U}) {
      fusion.threshold_bytes = mebi * kMebi;
      add(kFusion, fusion);
    }
  }
  if (!options.rule_is_given) {
    for (const FusionRule rule : {FusionRule::kNone, FusionRule::kHorovod}) {
      fusion = start;
      fusion.rule = rule;
      add(kFusion, fusion);
    }
  }
  Tuning lanes = start;
  for (lanes.lanes = 1; lanes.lanes <= options.max_lanes; ++lanes.lanes) {
    add(kLanes, lanes);
  }
  if (options.chunk_matters) {
    Tuning chunk = start;
    for (const std::uint64_t kibi : {256U, 1024U, 4096U}) {
      chunk.chunk_bytes = kibi * 1024;
      add(kChunk, chunk);
    }
  }
  return values;
}

}  // namespace

Autotuner::Autotuner(const AutotuneOptions& options)
    : options_(options),
      values_(values_of(options)),
      trial_(options.start),
      warmup_left_(options.warmup_samples) {}

bool Autotuner::on_tensor(std::size_t id, std::uint64_t bytes, TimePoint now) {
  if (done_) {
    return false;
  }
  if (!since_.has_value()) {
    since_ = now;
  }
  bool changed = false;
  if (++seen_[id] > options_.steps_per_sample) {
    const double us = std::chrono::duration<double, std::micro>(now - *since_).count();
    const double score = us > 0 ? bytes_ / us : 0;
    // This tensor opens the next sample.
    seen_.clear();
    seen_[id] = 1;
    bytes_ = 0;
    since_ = now;
    changed = on_sample(score);
  }
  bytes_ += static_cast<double>(bytes);
  return changed;
}

bool Autotuner::on_sample(double score) {
  if (warmup_left_ > 0) {
    --warmup_left_;
    return false;
  }
  scores_.push_back(score);
  if (scores_.size() < kScores) {
    return false;
  }
  std::ranges::nth_element(scores_, scores_.begin() + kScores / 2);
  const double median = scores_[kScores / 2];
  scores_.clear();
  return on_score(median);
}

bool Autotuner::on_score(double score) {
  log_.push_back({trial_, score});
  if (settings_ == 1 || score > best_.score) {
    best_ = log_.back();
  }
  const Tuning before = trial_;
  if (settings_ >= options_.max_settings || !next_trial()) {
    done_ = true;
    trial_ = best_.tuning;
    log_.push_back(best_);
  } else {
    ++settings_;
  }
  return trial_ != before;
}

bool Autotuner::next_trial() {
  while (dimension_ < values_.size()) {
    if (value_ < values_[dimension_].size()) {
      trial_ = with(best_.tuning, dimension_, values_[dimension_][value_++]);
      return true;
    }
    ++dimension_;
    value_ = 0;
  }
  return false;
}

std::vector<Autotuner::Sample> Autotuner::take_log() {
  return std::exchange(log_, {});
}

}  // namespace lightcc
