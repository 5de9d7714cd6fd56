#include "fusion_steps.hpp"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <variant>

#include "lightcc/control/agreement.hpp"
#include "lightcc/control/sequencer.hpp"

namespace lightcc::sim {
namespace {

constexpr int kSteps = 4;
constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;

/// One step after another. Rank 0 stands for all: it reports what the last rank is ready for.
class Steps {
 public:
  Steps(const std::vector<TimedGradient>& gradients,
        const BucketNetwork& network,
        StepStrategy strategy,
        const PlanOfRuns& plan)
      : network_(network), sequencer_(options_of(strategy)) {
    requests_.reserve(gradients.size());
    for (const TimedGradient& gradient : gradients) {
      Signature signature;
      signature.name = "gradient" + std::to_string(requests_.size());
      signature.shape = {static_cast<std::int64_t>(gradient.bytes / sizeof(float))};
      requests_.push_back({gradient.ready, std::move(signature)});
    }
    if (strategy == StepStrategy::kPlan) {
      group(plan);
    }
  }

  StepOutcome play(TimePoint begin) {
    StepOutcome outcome;
    std::size_t next = 0;
    TimePoint now = begin;
    while (true) {
      while (!ends_.empty() && ends_.front() <= now) {
        ends_.pop_front();
        sequencer_.on_bucket_done(0, 0, now);
      }
      for (; next < requests_.size() && at_rank_0(begin, next) <= now; ++next) {
        const Status taken =
            sequencer_.on_report({0, Request{requests_[next].signature, {}, {}}}, now);
        static_cast<void>(taken);  // What is lost is missing from the outcome's bytes.
      }
      announce(now, outcome);
      TimePoint following = TimePoint::max();
      if (next < requests_.size()) {
        following = at_rank_0(begin, next);
      }
      if (!ends_.empty()) {
        following = std::min(following, ends_.front());
      }
      if (sequencer_.has_held()) {
        following = std::min(following, std::max(sequencer_.next_release(), now + Duration(1)));
      }
      if (following == TimePoint::max()) {
        break;
      }
      now = following;
    }
    outcome.end = free_at_ - begin;
    return outcome;
  }

  TimePoint free_at() const { return free_at_; }

 private:
  struct Timed {
    Duration ready;
    Signature signature;
  };

  static SequencerOptions options_of(StepStrategy strategy) {
    SequencerOptions options;
    options.fusion = strategy == StepStrategy::kNone      ? FusionRule::kNone
                     : strategy == StepStrategy::kHorovod ? FusionRule::kHorovod
                                                          : FusionRule::kAuto;
    options.stall_check = false;
    return options;
  }

  void group(const PlanOfRuns& plan) {
    std::size_t begin = 0;
    for (const std::size_t count : plan) {
      for (std::size_t i = begin; i < begin + count; ++i) {
        Timed& request = requests_[i];
        request.ready = requests_[begin + count - 1].ready;
        request.signature.group = "bucket" + std::to_string(begin);
        request.signature.group_size = static_cast<std::uint32_t>(count);
        request.signature.fusion = {FusionRule::kPlanned, 0};
      }
      begin += count;
    }
  }

  TimePoint at_rank_0(TimePoint begin, std::size_t i) const {
    return begin + requests_[i].ready + network_.update;
  }

  void announce(TimePoint now, StepOutcome& outcome) {
    sequencer_.release_held(now);
    for (const Command& command : sequencer_.take_commands(now)) {
      const auto* execute = std::get_if<Execute>(&command);
      if (execute == nullptr) {
        continue;
      }
      std::uint64_t bytes = 0;
      for (const AnnouncedTensor& tensor : execute->tensors) {
        bytes += bytes_of(tensor);
      }
      free_at_ = std::max(free_at_, now + network_.update) + network_.cost(bytes);
      ends_.push_back(free_at_);
      ++outcome.buckets;
      outcome.bytes += bytes;
    }
  }

  std::uint64_t bytes_of(const AnnouncedTensor& tensor) {
    if (!tensor.signature.has_value()) {
      return slot_bytes_[tensor.slot];
    }
    const std::uint64_t bytes = byte_count(*tensor.signature);
    if (tensor.slot != kNoSlot) {
      slot_bytes_.resize(std::max<std::size_t>(slot_bytes_.size(), tensor.slot + 1));
      slot_bytes_[tensor.slot] = bytes;
    }
    return bytes;
  }

  BucketNetwork network_;
  Sequencer sequencer_;
  std::vector<Timed> requests_;
  std::vector<std::uint64_t> slot_bytes_;
  std::deque<TimePoint> ends_;  // When buckets under way end.
  TimePoint free_at_{};
};

}  // namespace

Duration BucketNetwork::cost(std::uint64_t bytes) const {
  return fixed + seconds(seconds_per_byte * static_cast<double>(bytes));
}

StepOutcome play_steps(const std::vector<TimedGradient>& gradients,
                       const BucketNetwork& network,
                       StepStrategy strategy,
                       const PlanOfRuns& plan,
                       Duration pause) {
  Steps steps(gradients, network, strategy, plan);
  StepOutcome outcome;
  for (int i = 0; i < kSteps; ++i) {
    outcome = steps.play(steps.free_at() + pause);
  }
  return outcome;
}

PlanOfRuns plan_by_arrival(const std::vector<TimedGradient>& gradients) {
  PlanOfRuns plan;
  std::uint64_t room = 0;
  for (const TimedGradient& gradient : gradients) {
    if (plan.empty() || gradient.bytes > room) {
      room = plan.empty() ? kMebi : 25 * kMebi;
      plan.push_back(0);
    }
    ++plan.back();
    room -= std::min(room, gradient.bytes);
  }
  return plan;
}

BestPlan best_plan(const std::vector<TimedGradient>& gradients,
                   const BucketNetwork& network,
                   std::uint64_t limit_bytes) {
  const std::size_t count = gradients.size();
  std::vector<Duration> end(count + 1, Duration::max());
  std::vector<std::size_t> begin_of(count + 1, 0);
  end[0] = Duration{};
  for (std::size_t j = 1; j <= count; ++j) {
    const Duration ready = gradients[j - 1].ready + 2 * network.update;
    std::uint64_t bytes = 0;
    for (std::size_t i = j; i-- > 0;) {
      bytes += gradients[i].bytes;
      if (bytes > limit_bytes && i + 1 < j) {
        break;
      }
      const Duration ends = std::max(end[i], ready) + network.cost(bytes);
      if (ends <= end[j]) {
        end[j] = ends;
        begin_of[j] = i;
      }
    }
  }
  BestPlan best{{}, end[count]};
  for (std::size_t j = count; j > 0; j = begin_of[j]) {
    best.plan.push_back(j - begin_of[j]);
  }
  std::ranges::reverse(best.plan);
  return best;
}

}  // namespace lightcc::sim
