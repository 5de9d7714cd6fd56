// Runs ranks as threads of one process: fast, and visible to TSan as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/engine/world.hpp"

#include "doubles/local_store.hpp"
#include "doubles/threads.hpp"

namespace lightcc::testing {

using Environment = std::map<std::string, std::string>;

inline GetEnv get_env_from(Environment environment) {
  return [environment =
              std::move(environment)](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
}

struct JobOptions {
  int size = 2;
  Environment environment;
  std::function<void(Knobs& knobs)> adjust = {};  ///< What the environment does not set.
  std::vector<int> hosts = {};                    ///< Emulated host of each rank; empty: one host.
  std::vector<std::vector<std::int32_t>> process_sets = {};
  std::function<std::vector<PlaneMaker>(int rank)> planes = {};  ///< Beside the host's.
  std::function<std::shared_ptr<Staging>(int rank)> staging = {};
  bool has_gpus = false;  ///< As WorldOptions::has_gpus, on all ranks.
};

inline JobOptions on_one_host(int size) {
  JobOptions options;
  options.size = size;
  return options;
}

/// As many ranks as `hosts` has entries.
inline JobOptions on_hosts(std::vector<int> hosts) {
  JobOptions options;
  options.size = static_cast<int>(hosts.size());
  options.hosts = std::move(hosts);
  return options;
}

/// With two-level all-reduces, between blocks of so many ranks.
inline JobOptions in_blocks(int intra_size, JobOptions options) {
  options.environment["LIGHT_2D_ALLREDUCE"] = "1";
  options.environment["LIGHT_INTRA_SIZE"] = std::to_string(intra_size);
  return options;
}

inline void PrintTo(const JobOptions& options, std::ostream* out) {
  *out << options.size << " ranks on " << (options.hosts.empty() ? "one host" : "several hosts");
}

/// Makes a world of `options.size` ranks and runs `body` on each, in its own thread.
inline void run_job(const JobOptions& options, const std::function<void(World&, int)>& body) {
  const std::shared_ptr<Store> store = make_local_store();
  run_on_threads(options.size, [&](int rank) {
    Environment environment = options.environment;
    if (!options.hosts.empty()) {
      const std::string host =
          "host" + std::to_string(options.hosts[static_cast<std::size_t>(rank)]);
      environment["LIGHT_HOST_ID"] = host;
      environment["NCCL_HOSTID"] = host;  // GPUs of the fake driver are in all of them.
    }
    auto knobs = read_knobs(get_env_from(environment));
    ASSERT_TRUE(knobs.ok()) << knobs.status().message();
    if (options.adjust) {
      options.adjust(*knobs);
    }
    WorldOptions world_options;
    world_options.knobs = *knobs;
    world_options.epoch.rank = rank;
    world_options.epoch.size = options.size;
    world_options.epoch.store = store;
    world_options.epoch.key_prefix = "test";
    world_options.epoch.secret = "secret";
    world_options.epoch.rendezvous_address = "127.0.0.1:1";
    world_options.process_sets = options.process_sets;
    if (options.planes) {
      world_options.planes = options.planes(rank);
    }
    if (options.staging) {
      world_options.staging = {options.staging(rank)};
    }
    world_options.has_gpus = options.has_gpus;
    auto world = World::create(std::move(world_options));
    ASSERT_TRUE(world.ok()) << "rank " << rank << ": " << world.status().message();
    body(**world, rank);
    EXPECT_TRUE((*world)->shutdown().ok());
  });
}

/// An operation on `data`; in place, but for the kinds that make an output.
inline Operation operation_on(OpType op, std::string name, std::vector<float>& data) {
  Operation operation;
  operation.request.signature.op = op;
  operation.name = std::move(name);
  operation.input = {.data = data.data(), .shape = {static_cast<std::int64_t>(data.size())}};
  if (op == OpType::kAllreduce || op == OpType::kBroadcast || op == OpType::kRecv) {
    operation.output = operation.input;
  }
  return operation;
}

inline Operation allreduce_of(std::string name, std::vector<float>& data) {
  return operation_on(OpType::kAllreduce, std::move(name), data);
}

/// One without tensors: a barrier, a join, a change of process sets.
inline Operation bare(OpType op) {
  Operation operation;
  operation.request.signature.op = op;
  return operation;
}

inline std::vector<Operation> only(Operation operation) {
  std::vector<Operation> one;
  one.push_back(std::move(operation));
  return one;
}

/// Submits and waits; a failure to submit comes back like a failure of the operation.
inline Result<std::vector<Outcome>> run_one(World& world, Operation operation) {
  LIGHTCC_ASSIGN_OR_RETURN(const Handle handle,
                           world.start(only(std::move(operation)), {.waits = true}));
  return world.wait(handle, {});
}

/// The same of several that travel in one bucket.
inline Result<std::vector<Outcome>> run_together(World& world, std::vector<Operation> operations) {
  LIGHTCC_ASSIGN_OR_RETURN(
      const Handle handle,
      world.start(std::move(operations), {.grouping = Grouping::kNamedMembers, .waits = true}));
  return world.wait(handle, {});
}

}  // namespace lightcc::testing
