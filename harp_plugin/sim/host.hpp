// A machine in the simulation: sessions, a listener, and what a runtime does for them.
//
// It hands arriving packets to their session and copies payloads where the session says, sends what
// sessions want to send, and wakes up at their deadlines. It can be paused (a stopped process:
// packets wait in its socket buffer) and can die.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/time.hpp"
#include "protocol/listener.hpp"
#include "protocol/session.hpp"
#include "sim/simulator.hpp"
#include "sim/wire.hpp"

namespace harp::sim {

class Host;

/// What runs on a host: told what happens, it posts.
class Application {
 public:
  Application() = default;
  Application(const Application&) = delete;
  Application& operator=(const Application&) = delete;
  virtual ~Application() = default;

  virtual void on_event(Session& session, const Event& event, Time now) = 0;
  virtual void on_accept(Session& session, Time now) = 0;
};

class Host final : public Actor {
 public:
  Host(Simulator& simulator, const char* name, Wire& out, Application& application);

  void set_trace(std::FILE* trace) { trace_ = trace; }
  /// Sessions for arriving SYNs are made with `config`, each with its own cid and nonce.
  void listen(std::uint64_t listen_id, const Secret& secret, const SessionConfig& config);
  Session& connect(const SessionConfig& config, const Secret& secret, std::uint64_t listen_id);

  void on_packet(std::span<const std::byte> packet, Time now);
  void act(Time now, std::uint64_t token) override;
  /// To be called after posting from outside of an Application's functions.
  void pump(Time now);

  void pause(Time from, Time until);
  /// Has its core for `turn` of each `period` only, first at `from`. What arrives meanwhile waits,
  /// up to `buffer_packets`.
  void share_core(Time from, Duration turn, Duration period, std::size_t buffer_packets);
  void die(Time at);
  bool is_dead(Time now) const { return now >= dies_at_; }

  const std::vector<std::unique_ptr<Session>>& sessions() const { return sessions_; }
  bool all_finished() const;

 private:
  bool is_paused(Time now) const { return now >= paused_from_ && now < paused_until_; }
  void take(std::span<const std::byte> packet, Time arrival, Time now);
  Session* session_for(std::span<const std::byte> packet, Time now);
  bool deliver_events(Time now);
  void transmit(Time now);
  void wake_at(Time at);
  void trace_packet(const char* what, std::span<const std::byte> packet, Time now) const;

  Simulator& simulator_;
  const char* name_;
  Wire& out_;
  Application& application_;
  std::FILE* trace_ = nullptr;
  std::optional<Listener> listener_;
  Secret secret_{};
  SessionConfig accept_config_;
  std::vector<std::unique_ptr<Session>> sessions_;
  struct Waiting {
    std::vector<std::byte> packet;
    Time arrival;
  };
  std::deque<Waiting> waiting_;  ///< Arrived during a pause.
  Time wake_at_ = kNever;
  Time paused_from_ = kNever;
  Time paused_until_ = kNever;
  Duration period_{};  ///< Pauses begin this far apart; 0: there is none.
  std::size_t buffer_packets_ = 2000;
  Time dies_at_ = kNever;
  std::uint32_t accepted_ = 0;
  std::uint64_t taken_ = 0;  ///< Packets.
};

}  // namespace harp::sim
