// Counts what the control plane sends for one step: control_traffic
//
// Prints a table in Markdown of control frames and bytes at rank 0 and at the leader of the second
// host, heartbeats left out. Each rank has 8 neighbours on its host. Every rank asks for all
// tensors of the step in one go, in an order of its own.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "control_world.hpp"

namespace {

using lightcc::sim::ControlWorld;
using lightcc::sim::Traffic;

constexpr int kRanksPerHost = 8;

struct Model {
  const char* title;
  int tensors;
  std::int64_t elements;
};

// As many as ResNet-50 has, and as large on average.
constexpr Model kModels[] = {{"ResNet-50, 161 gradients", 161, 158'739},
                             {"400 tensors of 64 KiB", 400, 16'384}};

void play_step(ControlWorld& world, const Model& model) {
  std::vector<int> order(static_cast<std::size_t>(model.tensors));
  std::iota(order.begin(), order.end(), 0);
  for (int rank = 0; rank < world.size(); ++rank) {
    std::shuffle(order.begin(), order.end(), world.rng());
    for (const int i : order) {
      lightcc::Request request;
      request.signature.name = "allreduce.layer" + std::to_string(i) + ".weight";
      request.signature.shape = {model.elements};
      world.submit(rank, request, static_cast<lightcc::OperationToken>(i + 1));
    }
  }
  world.run(world.now() + std::chrono::hours(1));
}

void print_row(const char* step, int ranks, const char* who, const Traffic& t) {
  std::printf("| %s | %d | %s | %llu | %llu | %llu | %llu |\n",
              step,
              ranks,
              who,
              static_cast<unsigned long long>(t.frames_in),
              static_cast<unsigned long long>(t.bytes_in),
              static_cast<unsigned long long>(t.frames_out),
              static_cast<unsigned long long>(t.bytes_out));
}

bool count(const Model& model, int ranks) {
  lightcc::sim::WorldPlan plan;
  for (int rank = 0; rank < ranks; rank += kRanksPerHost) {
    std::vector<int> host(kRanksPerHost);
    std::iota(host.begin(), host.end(), rank);
    plan.hosts.push_back(std::move(host));
  }
  plan.sequencer.slot_capacity = 1024;
  plan.sequencer.stall_check = false;
  plan.counts_bytes = true;
  ControlWorld world(plan, 1);
  std::uint64_t completed = 0;
  world.on_complete = [&](int, lightcc::OperationToken, const lightcc::Status& status, int) {
    completed += status.ok() ? 1 : 0;
  };
  for (const char* step : {"first", "steady"}) {
    world.reset_traffic();
    play_step(world, model);
    print_row(step, ranks, "rank 0", world.traffic(0));
    if (ranks > kRanksPerHost) {
      print_row(step, ranks, "leader", world.traffic(kRanksPerHost));
    }
  }
  return completed ==
         2ULL * static_cast<std::uint64_t>(ranks) * static_cast<std::uint64_t>(model.tensors);
}

}  // namespace

int main() {
  for (const Model& model : kModels) {
    std::printf("\n%s\n\n", model.title);
    std::printf("| step | ranks | at | frames in | bytes in | frames out | bytes out |\n");
    std::printf("|---|---|---|---|---|---|---|\n");
    for (const int ranks : {8, 64, 1024, 10'000}) {
      if (!count(model, ranks)) {
        std::fprintf(stderr, "not every operation completed\n");
        return 1;
      }
    }
  }
  return 0;
}
