// Compares fusion strategies in virtual time: fusion_steps [--check] < gradients
//
// Reads models as tools/gradient_times.py writes them, and prints a table in Markdown for each: the
// milliseconds of a step under auto_fusion, and the ratio of other strategies to it. With --check
// it reads nothing, plays small models of its own, and exits 1 where a strategy loses bytes or
// auto_fusion falls too far behind the best plan.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <span>
#include <string>
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

constexpr std::uint64_t kLimitBytes = std::uint64_t{64} << 20;  // Of auto_fusion, and of plans.
constexpr double kNewsSeconds = 30e-6;  // Over one link of a binary tree of hosts.
constexpr std::array kFixedMs{0.05, 0.2, 0.5, 2.0};
constexpr std::array kHosts{2, 8, 64, 256};

struct Model {
  std::string name;
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

/// "NAME COUNT FORWARD_S LINK_BYTES_PER_S", then a line "READY_S BYTES" for each gradient.
bool read_model(std::istream& in, Model& model) {
  std::size_t count = 0;
  double forward_s = 0;
  if (!(in >> model.name >> count >> forward_s >> model.link_bytes_per_s)) {
    return false;
  }
  model.forward = seconds(forward_s);
  model.gradients.clear();
  for (std::size_t i = 0; i < count; ++i) {
    double ready_s = 0;
    std::uint64_t bytes = 0;
    if (!(in >> ready_s >> bytes)) {
      std::fprintf(stderr, "%s has %zu gradients of %zu\n", model.name.c_str(), i, count);
      return false;
    }
    model.gradients.push_back({seconds(ready_s), bytes});
  }
  return true;
}

void print_table(const Model& model) {
  std::printf("%s: %zu gradients of %.0f MB, step of %.0f ms without communication\n\n",
              model.name.c_str(),
              model.gradients.size(),
              static_cast<double>(model.bytes()) * 1e-6,
              milliseconds(model.forward + model.gradients.back().ready));
  std::printf("| fixed cost | hosts | auto_fusion, ms | none | horovod | arrival | model |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (const double fixed_ms : kFixedMs) {
    for (const int hosts : kHosts) {
      const Outcomes outcomes =
          outcomes_of(model, network_of(fixed_ms, hosts, model.link_bytes_per_s));
      const double usual = milliseconds(model.forward + outcomes.by_default.end);
      const auto ratio = [&](const StepOutcome& outcome) {
        return milliseconds(model.forward + outcome.end) / usual;
      };
      std::printf("| %g ms | %d | %.1f | %.3f | %.3f | %.3f | %.3f |\n",
                  fixed_ms,
                  hosts,
                  usual,
                  ratio(outcomes.none),
                  ratio(outcomes.horovod),
                  ratio(outcomes.arrival),
                  ratio(outcomes.best));
    }
  }
  std::printf("\n");
}

/// Equal gradients that become ready at equal distances.
Model even_model(std::size_t count, std::uint64_t bytes, double backward_ms) {
  Model model{"even", seconds(backward_ms * 0.5e-3), 6.25e9, {}};
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

int main(int argc, char** argv) {
  const std::span<char*> arguments(argv, static_cast<std::size_t>(argc));
  if (arguments.size() == 2 && std::strcmp(arguments[1], "--check") == 0) {
    return check();
  }
  if (arguments.size() > 1) {
    std::fprintf(stderr, "usage: %s [--check] < gradients\n", arguments[0]);
    return 2;
  }
  Model model;
  while (read_model(std::cin, model)) {
    print_table(model);
  }
  return std::cin.eof() ? 0 : 2;
}
