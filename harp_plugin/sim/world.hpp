// Two hosts, the wires between them, and traffic: what most simulations consist of.
#pragma once

#include <cstdint>
#include <cstdio>

#include "protocol/session.hpp"
#include "sim/host.hpp"
#include "sim/simulator.hpp"
#include "sim/traffic.hpp"
#include "sim/wire.hpp"

namespace harp::sim {

struct WorldConfig {
  WireConfig up;  ///< Client to server.
  WireConfig down;
  SessionConfig client;
  SessionConfig server;
  Script up_script;
  Script down_script;
  Pace client_pace;
  Pace server_pace;
  std::uint64_t seed = 1;
};

class World {
 public:
  World(const WorldConfig& made, std::FILE* trace);

  /// Runs until both applications have what they wanted, or failed.
  bool run_until_ended(Time deadline, std::uint64_t max_events);
  /// Runs until all sessions are finished too.
  bool run_until_finished(Time deadline, std::uint64_t max_events);

  Simulator simulator;
  WorldConfig config;
  Wire up;
  Wire down;
  Traffic client_traffic;
  Traffic server_traffic;
  Host client;
  Host server;
  Session* session;  ///< The client's.
};

/// Settings with everything that must differ between the ends.
SessionConfig session_config(bool is_client, std::uint64_t seed);

}  // namespace harp::sim
