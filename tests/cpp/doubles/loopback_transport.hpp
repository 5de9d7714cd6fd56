// A Transport inside one process, for tests: ranks are objects, links are queues, and a FaultPlan
// makes the links as bad as a test wants them. (How it works: loopback.cpp.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/transport/transport.hpp"

#include "doubles/fault_plan.hpp"

namespace lightcc {

/// Joins the transports made from it. Transports and channels keep what they need of it alive.
/// Thread: any; each transport and its channels belong to one thread at a time.
class LoopbackHub {
 public:
  struct State;

  explicit LoopbackHub(const FaultPlan& plan = FaultPlan());

  /// The transport of `rank`. It has no wait_fd(): poll while requests are outstanding.
  std::unique_ptr<Transport> make_transport(std::uint32_t rank);
  /// What reaches `rank`, whether its transport was made yet or not.
  static TransportHandle handle_of(std::uint32_t rank);
  /// The faults of the plan that have not happened, one line each.
  std::vector<std::string> unfired_faults() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace lightcc
