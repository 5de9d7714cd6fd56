#include "sim/scenario.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "base/rng.hpp"
#include "base/time.hpp"
#include "protocol/session.hpp"
#include "sim/traffic.hpp"
#include "sim/wire.hpp"
#include "sim/world.hpp"

namespace harp::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

enum class Fate : std::uint8_t { kLives, kServerDies, kNetworkDies, kTooLong, kNeverUp };

struct Story {
  WorldConfig world;
  Fate fate = Fate::kLives;
  Time fate_at{};
  bool client_pauses = false;
  bool server_pauses = false;
  Time pause_from{};
  Time pause_until{};
};

template <std::size_t Count>
double pick(Rng& rng, const std::array<double, Count>& values) {
  return values[rng.below(Count)];
}

/// Somewhere from `min_us` to `max_us`, every magnitude as likely as the next. Products only:
/// the powers of <cmath> differ between machines, and so would the story of a seed.
Duration log_uniform(Rng& rng, double min_us, double max_us) {
  const double factor = max_us / min_us > 1e4 ? 3 : 2;
  double value = min_us;
  for (int steps = static_cast<int>(rng.unit() * 10); steps > 0; --steps) {
    value *= factor;
  }
  return Duration(static_cast<std::int64_t>(std::min(value, max_us) * 1e3));
}

WireConfig draw_wire(Rng& rng, std::uint16_t paths) {
  WireConfig wire;
  wire.delay = log_uniform(rng, 5, 10000);
  wire.bits_per_s = pick<5>(rng, {0, 2e7, 2e8, 1e9, 1e10});
  wire.queue_packets = rng.between(20, 500);
  if (rng.chance(0.3)) {
    wire.jitter = wire.delay * static_cast<std::int64_t>(rng.between(1, 10)) / 4;
  }
  if (rng.chance(0.5)) {
    wire.loss = pick<5>(rng, {0.001, 0.01, 0.05, 0.1, 0.2});
  }
  if (rng.chance(0.15)) {
    wire.burst_start = 0.005;
    wire.burst_packets = rng.between(2, 64);
  }
  if (rng.chance(0.3)) {
    wire.duplicate = pick<2>(rng, {0.01, 0.1});
  }
  if (rng.chance(0.3)) {
    wire.corrupt = pick<3>(rng, {0.001, 0.01, 0.05});
  }
  if (rng.chance(0.3)) {
    wire.detour = pick<3>(rng, {0.01, 0.1, 0.5});
    wire.detour_delay = std::max<Duration>(wire.delay * 2, microseconds(50));
  }
  if (paths > 1 && rng.chance(0.2)) {
    // At least one path works.
    wire.dark_paths = rng() & ((std::uint64_t{1} << paths) - 1) & ~std::uint64_t{1} &
                      ~(std::uint64_t{1} << (paths - 1));
    if (wire.loss >= 0.05) {
      wire.dark_paths &= rng();  // A network that is both is no network.
    }
  }
  if (rng.chance(0.1)) {
    wire.policed_bits_per_s = pick<2>(rng, {2e7, 2e8});
    wire.policer_burst_bytes = static_cast<double>(rng.between(10, 100)) * 1500;
  }
  if (rng.chance(0.1)) {
    wire.dark_from = Time(milliseconds(rng.below(100)));
    wire.dark_until = wire.dark_from + milliseconds(rng.between(1, 2000));
  }
  return wire;
}

std::size_t draw_size(Rng& rng, std::size_t pss) {
  switch (rng.below(6)) {
    case 0:
      return 0;
    case 1:
      return rng.between(1, 64);
    case 2:
      return pss * rng.between(1, 4);
    case 3:
      return pss * rng.between(1, 4) + (rng.chance(0.5) ? 1 : pss - 1);
    case 4:
      return rng.below(pss * 10);
    default:
      return rng.below(pss * (rng.chance(0.1) ? 1000 : 100));
  }
}

Script draw_script(Rng& rng, std::size_t pss) {
  Script script;
  script.content_seed = rng();
  const std::size_t count = rng.chance(0.1) ? 0 : rng.between(1, rng.chance(0.2) ? 60 : 12);
  for (std::size_t i = 0; i < count; ++i) {
    script.sizes.push_back(draw_size(rng, pss));
    script.capacities.push_back(script.sizes.back() + (rng.chance(0.5) ? rng.below(1000) : 0));
  }
  return script;
}

Pace draw_pace(Rng& rng) {
  Pace pace;
  pace.max_sends = rng.between(1, 32);
  pace.max_receives = rng.between(1, 32);
  if (rng.chance(0.3)) {
    pace.think = log_uniform(rng, 1, 20000);
  }
  if (rng.chance(0.2)) {
    pace.first_receive = milliseconds(rng.below(rng.chance(0.1) ? 40000 : 50));
  }
  return pace;
}

SessionConfig draw_session(Rng& rng, bool is_client, std::uint64_t seed) {
  SessionConfig config = session_config(is_client, seed);
  config.max_pss = static_cast<std::uint16_t>(pick<4>(rng, {64, 512, 1408, 1408}));
  config.paths = static_cast<std::uint16_t>(pick<4>(rng, {1, 2, 8, 16}));
  config.flows = 64;
  config.window_packets = static_cast<std::uint32_t>(pick<4>(rng, {64, 256, 1024, 4096}));
  config.eager_packets = static_cast<std::uint32_t>(pick<4>(rng, {1, 4, 32, 186}));
  config.max_sends = static_cast<std::uint32_t>(pick<3>(rng, {1, 8, 64}));
  config.max_receives = static_cast<std::uint32_t>(rng.between(1, 64));
  config.peer_timeout = std::chrono::seconds(10);
  config.min_rto = milliseconds(rng.chance(0.5) ? 2 : 10);
  config.initial_msg = static_cast<MsgSeq>(rng());
  if (rng.below(3) == 0) {
    config.initial_psn = 0 - static_cast<Psn>(rng.between(1, 200));
    config.initial_msg = 0 - static_cast<MsgSeq>(rng.between(1, 10));
  }
  return config;
}

void draw_fate(Rng& rng, Story& story) {
  story.fate_at = Time(microseconds(rng.below(rng.chance(0.5) ? 1000 : 200000)));
  const std::uint64_t drawn = rng.below(20);
  if (drawn == 0) {
    story.fate = Fate::kServerDies;
  } else if (drawn == 1) {
    story.fate = Fate::kNetworkDies;
    for (WireConfig* wire : {&story.world.up, &story.world.down}) {
      wire->dark_from = story.fate_at;
      wire->dark_until = kNever;
    }
  } else if (drawn == 2 && !story.world.up_script.sizes.empty()) {
    const std::size_t victim = rng.below(story.world.up_script.sizes.size());
    std::size_t& size = story.world.up_script.sizes[victim];
    size = std::max<std::size_t>(size, 1);
    story.world.up_script.capacities[victim] = rng.below(size);
    story.fate = Fate::kTooLong;
  } else if (drawn == 3 && rng.chance(0.3)) {
    story.fate = Fate::kNeverUp;
    story.world.down.loss = 1;
  } else if (drawn <= 6) {
    (rng.chance(0.5) ? story.client_pauses : story.server_pauses) = true;
    story.pause_from = story.fate_at;
    story.pause_until = story.fate_at + milliseconds(rng.between(1, rng.chance(0.2) ? 6000 : 300));
  }
}

Story draw_story(std::uint64_t seed) {
  Rng rng(seed ^ 0x4861727053696d);
  Story story;
  WorldConfig& world = story.world;
  world.seed = seed;
  world.client = draw_session(rng, true, seed);
  world.server = draw_session(rng, false, seed);
  const std::uint16_t paths = std::min(world.client.paths, world.server.paths);
  world.up = draw_wire(rng, paths);
  world.down = draw_wire(rng, paths);
  const std::size_t pss = std::min(world.client.max_pss, world.server.max_pss);
  world.up_script = draw_script(rng, pss);
  world.down_script = draw_script(rng, pss);
  world.client_pace = draw_pace(rng);
  world.server_pace = draw_pace(rng);
  draw_fate(rng, story);
  return story;
}

std::string describe(const Story& story) {
  const WorldConfig& world = story.world;
  std::string text;
  std::array<char, 400> line{};
  const auto add_wire = [&](const char* name, const WireConfig& wire) {
    std::snprintf(line.data(),
                  line.size(),
                  " %s[%.0g b/s %.3f ms jitter %.3f loss %g burst %llu dup %g corrupt %g detour %g "
                  "dark %llx policed %.0g]",
                  name,
                  wire.bits_per_s,
                  seconds(wire.delay) * 1e3,
                  seconds(wire.jitter) * 1e3,
                  wire.loss,
                  static_cast<unsigned long long>(wire.burst_packets),
                  wire.duplicate,
                  wire.corrupt,
                  wire.detour,
                  static_cast<unsigned long long>(wire.dark_paths),
                  wire.policed_bits_per_s);
    text += line.data();
  };
  std::snprintf(line.data(),
                line.size(),
                "fate %d at %.3f ms, %zu up, %zu down, pss %u/%u, paths %u/%u, window %u/%u, "
                "eager %u/%u, pause %d/%d",
                static_cast<int>(story.fate),
                seconds(story.fate_at.time_since_epoch()) * 1e3,
                world.up_script.sizes.size(),
                world.down_script.sizes.size(),
                world.client.max_pss,
                world.server.max_pss,
                world.client.paths,
                world.server.paths,
                world.client.window_packets,
                world.server.window_packets,
                world.client.eager_packets,
                world.server.eager_packets,
                story.client_pauses ? 1 : 0,
                story.server_pauses ? 1 : 0);
  text = line.data() + text;
  add_wire("up", world.up);
  add_wire("down", world.down);
  return text;
}

bool is_fatal(Fate fate) {
  return fate != Fate::kLives;
}

/// Whether `error` is what an end may see when `fate` strikes. A story may also be over before.
bool belongs_to(Fate fate, SessionError error) {
  switch (fate) {
    case Fate::kLives:
      return error == SessionError::kNone;
    case Fate::kServerDies:
    case Fate::kNetworkDies:
    case Fate::kNeverUp:
      return error == SessionError::kNone || error == SessionError::kPeerTimeout ||
             error == SessionError::kConnectTimeout || error == SessionError::kNoProgress;
    case Fate::kTooLong:
      // An end that hears of it after it has closed, or whose peer is gone by then, sees less.
      return error == SessionError::kNone || error == SessionError::kMessageTooLong ||
             error == SessionError::kPeerTimeout;
  }
  return false;
}

std::string verdict_of(const World& world, const Story& story, bool ended, bool finished) {
  for (const Traffic* traffic : {&world.client_traffic, &world.server_traffic}) {
    if (!traffic->broken().empty()) {
      return traffic->broken();
    }
  }
  if (!ended) {
    return "did not end: client sent " + std::to_string(world.client_traffic.sent()) +
           " received " + std::to_string(world.client_traffic.received()) + ", server sent " +
           std::to_string(world.server_traffic.sent()) + " received " +
           std::to_string(world.server_traffic.received());
  }
  const bool server_died = story.fate == Fate::kServerDies;
  for (const Traffic* traffic : {&world.client_traffic, &world.server_traffic}) {
    if (server_died && traffic == &world.server_traffic) {
      continue;
    }
    if (!belongs_to(story.fate, traffic->failure())) {
      return std::string("failed with ") + session_error_name(traffic->failure());
    }
    if (traffic->outstanding() != 0 && traffic->has_ended()) {
      return "requests without an end";
    }
    if (!is_fatal(story.fate) && !traffic->is_done()) {
      return "ended without everything";
    }
  }
  if (story.fate == Fate::kTooLong && world.server_traffic.failure() == SessionError::kNone &&
      world.server_traffic.is_done()) {
    return "a message that is too long was received";
  }
  if (!finished) {
    return "sessions did not finish";
  }
  return "";
}

}  // namespace

ScenarioResult run_scenario(std::uint64_t seed, std::FILE* trace) {
  const Story story = draw_story(seed);
  ScenarioResult result;
  result.summary = describe(story);
  if (trace != nullptr) {
    std::fprintf(
        trace, "seed %llu: %s\n", static_cast<unsigned long long>(seed), result.summary.c_str());
  }
  World world(story.world, trace);
  if (story.client_pauses) {
    world.client.pause(story.pause_from, story.pause_until);
  }
  if (story.server_pauses) {
    world.server.pause(story.pause_from, story.pause_until);
  }
  if (story.fate == Fate::kServerDies) {
    world.server.die(story.fate_at);
  }
  constexpr std::uint64_t kMaxEvents = 3000000;
  constexpr Time kDeadline{std::chrono::seconds(600)};
  const bool never_met = story.fate == Fate::kNeverUp || story.fate == Fate::kNetworkDies;
  bool ended = world.run_until_ended(kDeadline, kMaxEvents);
  if (!ended && never_met && world.server_traffic.session() == nullptr) {
    ended = world.client_traffic.has_ended();  // The server never heard of it.
  }
  const bool finished = ended && world.run_until_finished(kDeadline, kMaxEvents);
  result.why = verdict_of(world, story, ended, finished);
  result.ok = result.why.empty();
  result.events = world.simulator.event_count();
  result.was_fatal = is_fatal(story.fate);
  result.dropped = world.up.stats().dropped + world.down.stats().dropped;
  for (const Host* host : {&world.client, &world.server}) {
    for (const auto& session : host->sessions()) {
      const SessionStats& stats = session->stats();
      result.data_packets += stats.data_packets_sent;
      result.retransmitted += stats.retransmitted_order + stats.retransmitted_timeout;
    }
  }
  const Psn first = story.world.client.initial_psn.value_or(0);
  result.wrapped =
      first > 0xffffff00 && world.session->stats().data_packets_sent > std::uint64_t{0 - first};
  return result;
}

}  // namespace harp::sim
