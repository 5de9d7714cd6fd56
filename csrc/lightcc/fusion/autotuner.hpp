// Autotune: tries settings on real steps, one after another, and keeps those that moved most bytes
// per second. Pure: told what is announced and when; says what to use from then on.
//
// Measuring follows Horovod. A sample is so many steps, and a step is over when a tensor comes
// again; the first samples of all are thrown away, and a setting's score is the median of five.
// The search does not: there are few settings, most of them words or small numbers, so one
// dimension after another is tried value by value, with the best so far in the others. What the
// user has set is no dimension. Whether anything is compressed never is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/types.hpp"

namespace lightcc {

struct AutotuneOptions {
  Tuning start;
  bool rule_is_given = false;  ///< By the user, who is not overruled; the others likewise.
  bool threshold_is_given = false;
  bool chunk_matters = false;  ///< There are two levels, and no chunk is given.
  std::uint32_t max_lanes = 1;
  int warmup_samples = 3;
  int steps_per_sample = 10;
  int max_settings = 20;  ///< That are tried.
};

/// Thread: one at a time.
class Autotuner {
 public:
  explicit Autotuner(const AutotuneOptions& options);

  /// A tensor of `bytes` was announced; `id` is the same in every step. True: tuning() changed. hot
  bool on_tensor(std::size_t id, std::uint64_t bytes, TimePoint now);

  /// What to use now.
  const Tuning& tuning() const { return trial_; }
  /// The best setting is in use, and stays.
  bool done() const { return done_; }
  struct Sample {
    Tuning tuning;
    double score = 0;  ///< Bytes per microsecond.
  };
  /// What was scored since the last call; once done, the winner again as the last.
  std::vector<Sample> take_log();

 private:
  bool on_sample(double score);
  bool on_score(double score);
  /// Moves `trial_` to the next setting; false: there is none.
  bool next_trial();

  AutotuneOptions options_;
  /// By dimension: all values but that of the start, as settings that differ in nothing else.
  std::vector<std::vector<Tuning>> values_;
  std::size_t dimension_ = 0;
  std::size_t value_ = 0;
  int settings_ = 1;
  Tuning trial_;
  Sample best_;
  bool done_ = false;
  int warmup_left_;
  std::vector<double> scores_;
  std::unordered_map<std::size_t, int> seen_;  // In this sample.
  double bytes_ = 0;
  std::optional<TimePoint> since_;
  std::vector<Sample> log_;
};

}  // namespace lightcc
