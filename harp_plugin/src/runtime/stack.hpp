// One isolated stack instance: sessions, listeners and the datapath that carries their packets.
//
// Nothing is shared with another stack. Whoever owns it calls turn() with the time, again and
// again; a turn takes what applications posted and what arrived, lets sessions transmit, and tells
// applications what became of their requests. The time is a parameter and nothing blocks, so a
// stack runs as well in a simulation.
//
// Thread: one at a time (the holder of the engine's driver lock). Applications reach it through
// Channels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/time.hpp"
#include "datapath/address.hpp"
#include "datapath/datapath.hpp"
#include "protocol/handle.hpp"
#include "protocol/listener.hpp"
#include "protocol/session.hpp"
#include "runtime/backlog.hpp"
#include "runtime/channel.hpp"
#include "runtime/random.hpp"
#include "sync/doorbells.hpp"

namespace harp {

struct StackConfig {
  /// Every session has it; the stack chooses cid, nonce, seed and packet size, and there is a
  /// CRC of the payload where the datapath has no checksum.
  SessionConfig session;
  std::uint16_t paths = 8;
  /// What time it is, asked once packets have come: a thread may have stood still since its turn
  /// began, and would take the wait for a part of the round trip. Null: the turn's time, always.
  Time (*clock)() = nullptr;
  /// Gives the bytes for secrets, connection identifiers and choices of paths.
  Entropy entropy = fill_randomly;
};

struct StackStats {
  std::uint64_t turns = 0;
  std::uint64_t idle_turns = 0;      ///< Nothing was there to do.
  std::uint64_t strangers = 0;       ///< Packets for no session or listener.
  std::uint64_t bytes_copied = 0;    ///< By placement: from the datapath's memory to a buffer.
  std::uint64_t bytes_taken = 0;     ///< Takers read them in the datapath's memory.
  std::uint64_t sessions_begun = 0;  ///< Both ends.
  std::uint64_t sessions_failed = 0;
};

/// A session as others may look at it, while nothing happens to its stack.
struct SessionView {
  const Session* session = nullptr;
  Address peer;  ///< Its address on the first path that is known.
};

class Stack {
 public:
  /// That there may be at a time, at either end, with those that still linger.
  static constexpr std::size_t kMaxSessions = Doorbells::kCount;

  Stack(std::unique_ptr<Datapath> datapath, StackConfig config);
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack();

  /// Does what is to be done now. False: there was nothing.
  bool turn(Time now);
  /// When turn() is needed at the latest, if nothing arrives and nobody posts.
  Time next_deadline() const;
  /// Nothing is alive, or waits for a peer.
  bool is_idle() const { return session_count() == 0 && listeners_.empty(); }

  /// Begins a session with whoever gave the handle away; the next turns connect it. Null: there
  /// are too many sessions.
  std::shared_ptr<Channel> connect(const ConnectHandle& handle, Time now);
  /// Listens; sessions that come are in `backlog` once they are connected. The handle is what a
  /// peer needs.
  ConnectHandle listen(std::shared_ptr<Backlog> backlog);
  /// Ends it, and the sessions that nobody has taken from its backlog.
  void stop_listening(std::uint64_t listen_id, Time now);
  /// Ends a session: in good order if nothing is outstanding, else at once. Buffers are free when
  /// it returns.
  void close(const Channel& channel, Time now);

  /// See Datapath.
  bool register_memory(std::span<const std::byte> memory) {
    return datapath_->register_memory(memory);
  }
  void deregister_memory(std::span<const std::byte> memory) {
    datapath_->deregister_memory(memory);
  }

  Doorbells& doorbells() { return bells_; }
  Datapath& datapath() { return *datapath_; }
  const Datapath& datapath() const { return *datapath_; }
  std::size_t session_count() const { return entries_.size() - free_slots_.size(); }
  /// Sessions that an application has not closed.
  std::size_t channel_count() const { return channel_count_; }
  const StackStats& stats() const { return stats_; }
  /// Writes the first sessions to `out`, and returns how many of them.
  std::size_t list_sessions(std::span<SessionView> out) const;
  /// How the session of `channel` stands; nothing where it is over.
  std::string describe_session(const Channel& channel) const;
  /// Sum over the sessions that are there, and those that were.
  SessionStats session_stats() const;

 private:
  struct Entry;
  struct Listening {
    std::uint64_t id;
    Listener listener;
    Secret secret;
    std::shared_ptr<Backlog> backlog;
  };
  using Slot = std::uint32_t;

  // A turn, in this order
  bool take_posts(Time now);
  bool take_packets(Time& now);
  bool wake_due(Time now);
  void transmit_few(Time now);
  void transmit(Time now);
  void tell_applications();
  void settle(Time now);

  bool post(Entry& entry, Time now);
  void take_packet(const Arrival& arrival, Time now);
  Entry* on_syn(const Arrival& arrival, Time now);
  void put(const Placement& placement);
  void transmit_from(Entry& entry, Time now);
  bool make_room(Time now);
  void tell(Entry& entry, const Event& event);
  void end(Entry& entry, Time now);

  void mark(Entry& entry);
  Entry* add_entry();
  void remove(Entry& entry);
  Listening* listening(std::uint64_t id);
  SessionConfig session_config(Slot slot);

  std::unique_ptr<Datapath> datapath_;
  StackConfig config_;
  Doorbells bells_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<Slot> free_slots_;
  std::size_t channel_count_ = 0;
  std::vector<Time> deadlines_;  ///< By slot, side by side because each turn may read them all.
  Time next_due_ = kNever;
  std::vector<Entry*> marked_;  ///< Something happened to them since they were last settled.
  std::vector<Entry*> settling_;
  std::vector<Listening> listeners_;
  bool is_blocked_ = false;  ///< The datapath takes no more for now.
  TransmitPacket packet_;
  StackStats stats_;
  SessionStats past_;
};

/// What there is to say when `channel` is about to be closed: how its session stands, and with the
/// last channel what the stack's datapath, turns and sessions have counted. So closing many costs
/// each of them the same. Lines for a log that cuts what is longer than a kilobyte, as NCCL's does.
std::vector<std::string> describe_close(const Stack& stack, const Channel& channel);

}  // namespace harp
