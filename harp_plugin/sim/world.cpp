#include "sim/world.hpp"

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/rng.hpp"
#include "base/time.hpp"

namespace harp::sim {
namespace {

constexpr std::uint64_t kListenId = 0x11223344;
constexpr Secret kSecret{std::byte{0x5e}, std::byte{0xc2}};

}  // namespace

SessionConfig session_config(bool is_client, std::uint64_t seed) {
  SessionConfig config;
  Rng rng(seed * 2 + (is_client ? 1 : 0));
  config.local_cid = static_cast<Cid>(rng() | 1);
  const std::uint64_t nonce = rng();
  std::memcpy(config.nonce.data(), &nonce, sizeof(nonce));
  config.seed = rng();
  return config;
}

World::World(const WorldConfig& made, std::FILE* trace)
    : config(made),
      up(simulator, made.up, made.seed * 3 + 1),
      down(simulator, made.down, made.seed * 3 + 2),
      client_traffic(simulator, "client", config.up_script, config.down_script, made.client_pace),
      server_traffic(simulator, "server", config.down_script, config.up_script, made.server_pace),
      client(simulator, "client", up, client_traffic),
      server(simulator, "server", down, server_traffic),
      session(&client.connect(config.client, kSecret, kListenId)) {
  up.connect(
      [this](std::span<const std::byte> packet, Time now) { server.on_packet(packet, now); });
  down.connect(
      [this](std::span<const std::byte> packet, Time now) { client.on_packet(packet, now); });
  client_traffic.set_host(client);
  server_traffic.set_host(server);
  client.set_trace(trace);
  server.set_trace(trace);
  client_traffic.set_trace(trace);
  server_traffic.set_trace(trace);
  server.listen(kListenId, kSecret, config.server);
  client_traffic.on_accept(*session, simulator.now());
}

bool World::run_until_ended(Time deadline, std::uint64_t max_events) {
  return simulator.run_until(
      [this] {
        const Time now = simulator.now();
        return (client_traffic.has_ended() || client.is_dead(now)) &&
               (server_traffic.has_ended() || server.is_dead(now));
      },
      deadline,
      max_events);
}

bool World::run_until_finished(Time deadline, std::uint64_t max_events) {
  return simulator.run_until(
      [this] {
        const Time now = simulator.now();
        return (client.all_finished() || client.is_dead(now)) &&
               (server.all_finished() || server.is_dead(now));
      },
      deadline,
      max_events);
}

}  // namespace harp::sim
