// Plays steps of small models in virtual time, under each fusion strategy. Exits 1 where a strategy
// loses bytes, or auto_fusion falls too far behind the best plan.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "fusion_steps.hpp"

namespace {

using lightcc::Duration;
using lightcc::seconds;
using lightcc::sim::best_plan;
using lightcc::sim::BestPlan;
using lightcc::sim::BucketNetwork;
using lightcc::sim::plan_by_arrival;
using lightcc::sim::PlanOfRuns;
using lightcc::sim::play_steps;
using lightcc::sim::StepOutcome;
using lightcc::sim::StepStrategy;
using lightcc::sim::TimedGradient;

constexpr std::uint64_t kLimitBytes = std::uint64_t{64} << 20;  // For auto_fusion, and for plans.
constexpr double kNewsSeconds = 30e-6;  // Over one link of a binary tree of hosts.
constexpr std::array kFixedMs{0.05, 0.2, 0.5, 2.0};
constexpr std::array kHosts{2, 8, 64, 256};

struct Model {
  Duration forward{};
  double link_bytes_per_s = 0;
  std::vector<TimedGradient> gradients;

  std::uint64_t bytes() const {
    std::uint64_t total = 0;
    for (const TimedGradient& gradient : gradients) {
      total += gradient.bytes;
    }
    return total;
  }
};

BucketNetwork network_of(double fixed_ms, int hosts, double link_bytes_per_s) {
  // What leaves a host in an all-reduce between hosts, for each byte that is reduced.
  const double factor = 2.0 * (hosts - 1) / hosts;
  return {seconds(fixed_ms * 1e-3),
          factor / link_bytes_per_s,
          seconds(kNewsSeconds * std::ceil(std::log2(hosts)))};
}

struct Outcomes {
  StepOutcome none;
  StepOutcome by_default;
  StepOutcome horovod;
  StepOutcome arrival;
  StepOutcome best;
  Duration bound{};  ///< No plan ends earlier.

  std::array<StepOutcome, 5> all() const { return {none, by_default, horovod, arrival, best}; }
};

Outcomes outcomes_of(const Model& model, const BucketNetwork& network) {
  const auto play = [&](StepStrategy strategy, const PlanOfRuns& plan) {
    return play_steps(model.gradients, network, strategy, plan, model.forward);
  };
  const BestPlan best = best_plan(model.gradients, network, kLimitBytes);
  return {play(StepStrategy::kNone, {}),
          play(StepStrategy::kAuto, {}),
          play(StepStrategy::kHorovod, {}),
          play(StepStrategy::kPlan, plan_by_arrival(model.gradients)),
          play(StepStrategy::kPlan, best.plan),
          best.end};
}

double milliseconds(Duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// Equal gradients that become ready at equal distances.
Model even_model(std::size_t count, std::uint64_t bytes, double backward_ms) {
  Model model{seconds(backward_ms * 0.5e-3), 6.25e9, {}};
  for (std::size_t i = 1; i <= count; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(count);
    model.gradients.push_back({seconds(backward_ms * 1e-3 * share), bytes});
  }
  return model;
}

int check() {
  int failures = 0;
  for (const Model& model : {even_model(400, 65'536, 5),
                             even_model(400, 65'536, 50),
                             even_model(160, 393'216, 200),
                             even_model(3, 1 << 20, 1)}) {
    for (const double fixed_ms : kFixedMs) {
      for (const int hosts : kHosts) {
        const BucketNetwork network = network_of(fixed_ms, hosts, model.link_bytes_per_s);
        const Outcomes outcomes = outcomes_of(model, network);
        const auto all = outcomes.all();
        const bool is_whole = std::ranges::all_of(
            all, [&](const StepOutcome& outcome) { return outcome.bytes == model.bytes(); });
        // Who does not know what comes may have closed a bucket just before the last gradient came.
        // Beyond 0.5 ms of lead, that bucket waits for a quarter of the one before it.
        const Duration maximum =
            outcomes.bound + 2 * network.fixed + 2 * network.update + seconds(0.5e-3);
        const bool is_bound = std::ranges::all_of(
            all, [&](const StepOutcome& outcome) { return outcome.end >= outcomes.bound; });
        if (!is_whole || !is_bound || outcomes.by_default.end > maximum) {
          std::printf("%zu gradients, %g ms, %d hosts: auto_fusion %.3f ms, the bound %.3f ms%s\n",
                      model.gradients.size(),
                      fixed_ms,
                      hosts,
                      milliseconds(outcomes.by_default.end),
                      milliseconds(outcomes.bound),
                      is_whole ? "" : ", bytes are missing");
          ++failures;
        }
      }
    }
  }
  return failures > 0 ? 1 : 0;
}

}  // namespace

int main() {
  return check();
}
