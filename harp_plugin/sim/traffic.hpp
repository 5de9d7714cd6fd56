// An application that sends a list of messages and receives another one, at its own pace, checks
// every byte, and closes when it has all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "base/time.hpp"
#include "protocol/session.hpp"
#include "sim/host.hpp"
#include "sim/simulator.hpp"

namespace harp::sim {

/// The messages of one direction, known to both ends.
struct Script {
  std::vector<std::size_t> sizes;
  /// The receives' room; at least the size, unless meant to fail.
  std::vector<std::size_t> capacities;
  std::uint64_t content_seed = 0;

  std::span<const std::byte> content(std::size_t message) const;
  std::uint16_t tag(std::size_t message) const {
    return static_cast<std::uint16_t>(message * 7 + content_seed);
  }
};

struct Pace {
  std::size_t max_sends = 8;
  std::size_t max_receives = 8;
  Duration think{};          ///< Least time between two receives.
  Duration first_receive{};  ///< Nothing is received before.
};

class Traffic final : public Application, public Actor {
 public:
  Traffic(Simulator& simulator, const char* name, const Script& out, const Script& in, Pace pace);

  void set_host(Host& host) { host_ = &host; }
  void set_trace(std::FILE* trace) { trace_ = trace; }

  void on_event(Session& session, const Event& event, Time now) override;
  void on_accept(Session& session, Time now) override;
  void act(Time now, std::uint64_t token) override;

  bool is_done() const { return sent_ == out_.sizes.size() && received_ == in_.sizes.size(); }
  bool has_ended() const { return ended_; }
  Time done_at() const { return done_at_; }
  /// The first broken promise, or empty.
  const std::string& broken() const { return broken_; }
  SessionError failure() const { return failure_; }
  std::size_t outstanding() const { return posted_sends_ + posted_receives_; }
  std::size_t received() const { return received_; }
  std::size_t sent() const { return sent_; }
  Session* session() const { return session_; }

 private:
  struct Inbox {
    std::vector<std::byte> bytes;  ///< Capacity and a canary.
    bool is_posted = false;
    bool is_done = false;
  };

  void post(Time now);
  void post_receives(Time now);
  void on_received(const Event& event, Time now);
  void check_content(std::size_t message, const Event& event);
  void check_done(Time now);
  void breaks(const std::string& promise);

  Simulator& simulator_;
  const char* name_;
  const Script& out_;
  const Script& in_;
  Pace pace_;
  Host* host_ = nullptr;
  Session* session_ = nullptr;
  std::FILE* trace_ = nullptr;
  std::size_t next_send_ = 0;
  std::size_t next_receive_ = 0;
  std::size_t posted_sends_ = 0;
  std::size_t posted_receives_ = 0;
  std::size_t sent_ = 0;
  std::size_t received_ = 0;
  std::vector<bool> send_done_;
  std::vector<Inbox> inboxes_;
  Time next_receive_at_{};
  bool wake_is_set_ = false;
  bool ended_ = false;
  SessionError failure_ = SessionError::kNone;
  Time done_at_ = kNever;
  std::string broken_;
};

}  // namespace harp::sim
