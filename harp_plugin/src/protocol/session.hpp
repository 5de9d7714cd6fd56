// One connection between two endpoints: messages both ways, reliable, in order of posting.
//
// Sans-I/O: a session makes no system call and asks no clock. Its owner
//   * hands in each packet that arrived,
//     and carries out the Placement:              on_packet(bytes, now);
//   * posts messages and receives:                post_send(), post_receive();
//   * asks for packets until there are none:      poll_transmit(now, packet);
//   * asks what happened:                         poll_event(event);
//   * calls again at the latest at                next_deadline().
// After each of the first two, packets and events may be waiting. poll_transmit() also runs the
// timers.
//
// Thread: one, the owner's. Blocks: never. Memory: everything is allocated by the constructor,
// except the frames for eager packets, which come with the first of them. Buffers of requests
// belong to the session from the post until their event.
//
// A session is a frame around parts that know nothing of one another: SentPackets, PathSet,
// LossDetector, Congestion, Pacer, SendQueue, SendCredit on the sending side; ReceiveWindow,
// MessageReceiver, AckTracker on the receiving side; HandshakeMachine, Liveness, Answers and
// Closing for both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/rng.hpp"
#include "base/time.hpp"
#include "protocol/ack_body.hpp"
#include "protocol/ack_tracker.hpp"
#include "protocol/answers.hpp"
#include "protocol/auth.hpp"
#include "protocol/closing.hpp"
#include "protocol/congestion.hpp"
#include "protocol/control_packet.hpp"
#include "protocol/events.hpp"
#include "protocol/handshake.hpp"
#include "protocol/handshake_machine.hpp"
#include "protocol/liveness.hpp"
#include "protocol/loss_detection.hpp"
#include "protocol/message_receiver.hpp"
#include "protocol/pacer.hpp"
#include "protocol/packet.hpp"
#include "protocol/path_set.hpp"
#include "protocol/receive_window.hpp"
#include "protocol/send_credit.hpp"
#include "protocol/send_queue.hpp"
#include "protocol/sent_packets.hpp"
#include "protocol/session_config.hpp"
#include "protocol/types.hpp"

namespace harp {

/// A packet to transmit: `head_bytes` of `head`, then `payload`, which is the caller's own data, in
/// place. Valid until the next call on the session.
// NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): filled as far as head_bytes says.
struct TransmitPacket {
  std::array<std::byte, kHeaderBytes + kMaxAckBytes> head;
  std::size_t head_bytes = 0;
  std::span<const std::byte> payload;
  PathIndex path = 0;
  FlowIndex flow = 0;  ///< A client sends from this local port.
};

enum class PostResult : std::uint8_t {
  kPosted,
  kFull,     ///< Try again after events were polled.
  kTooLong,  ///< Beyond kMaxMessageBytes.
  kEnded,    ///< Closed, failed, or the peer sends no more; there will be no event.
};

// Fields are grouped by what they are about.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class Session {
 public:
  /// The end that has the handle.
  Session(const SessionConfig& config, const Secret& secret, std::uint64_t listen_id, Time now);
  /// The end that received `syn` at `now`, in a packet sent at `syn_tx_time`. See Listener.
  Session(const SessionConfig& config,
          const Secret& secret,
          const Syn& syn,
          std::uint32_t syn_tx_time,
          Time now);

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() = default;

  /// Takes one packet. What must be done with its payload before the next call is the result.
  Placement on_packet(std::span<const std::byte> packet, Time now, const Reception& how = {});

  PostResult post_send(const SendRequest& request, Time now);
  PostResult post_receive(const ReceiveRequest& request, Time now);

  /// Graceful: no more posts, receives are cancelled, sends are delivered, then kClosed.
  void close(Time now);
  /// At once: everything is cancelled, the peer is told.
  void cancel(Time now);

  /// Runs timers; writes the next packet. False where there is none now.
  bool poll_transmit(Time now, TransmitPacket& out);
  bool poll_event(Event& event) { return events_.pop(event); }
  bool has_events() const { return events_.count() > 0; }
  /// When poll_transmit() must be called at the latest; kNever where only packets or posts matter.
  Time next_deadline() const;

  bool is_connected() const { return state_ == State::kEstablished; }
  /// About how many of messages wait to be sent, for the first time or again; see SendQueue.
  std::size_t waiting_packets() const { return queue_.uncut_packets(pss_) + sent_.lost(); }
  /// Nothing will ever come of this session again; the owner may destroy it.
  bool is_finished() const { return state_ == State::kFinished; }
  SessionError error() const { return error_; }
  /// Path of the last packet, kNoPath where it was not authentic: how a server learns its routes.
  PathIndex heard_path() const { return heard_path_; }
  /// The last packet brought data that was not there: nobody has repeated it.
  bool heard_update() const { return heard_update_; }
  Cid local_cid() const { return config_.local_cid; }
  Time started() const { return handshake_.started(); }
  /// One word: how far it is in its life.
  const char* state_name() const;
  std::uint16_t pss() const { return pss_; }
  const SessionStats& stats() const { return stats_; }
  const PathSet& paths() const { return paths_; }
  const Congestion& congestion() const { return congestion_; }
  const SentPackets& sent_packets() const { return sent_; }
  const Pacer& pacer() const { return pacer_; }
  std::uint64_t eager_bytes_copied() const { return receiver_.eager_bytes_copied(); }

 private:
  enum class State : std::uint8_t {
    kConnecting,   ///< Client: SYN sent. Server: SYNACK sent.
    kEstablished,  ///< Also while closing.
    kLingering,    ///< Over, but answers a peer that does not know it.
    kFinished,
  };

  // session.cpp: life
  Session(const SessionConfig& config, const HandshakeMachine& handshake);
  Offer make_offer() const;
  void use_offer(const Offer& peer);
  void establish(Time now);
  void fail(SessionError error, bool tell_peer, Time now);
  void finish_close(Time now);
  void linger(Time now);
  bool has_outstanding() const;
  bool is_blocked_by_credit() const;
  std::size_t reserved_events() const;
  void on_call(Time now);
  void set_rates();

  // session_receive.cpp: what packets do
  bool accept_auth(const PacketView& packet) const;
  void on_syn_again(const PacketView& packet, const Reception& how, Time now);
  void on_syn_ack(const PacketView& packet, const Reception& how, Time now);
  void on_conf(const PacketView& packet, const Reception& how, Time now);
  void on_control(const PacketView& packet, const Reception& how, Time now);
  Placement on_sequenced(const PacketView& packet, const Reception& how, Time now);
  bool take_data(const PacketView& packet, Time now, Placement& placement);
  void on_peer_end(Time now);
  void on_ack(const AckBody& ack, const Reception& how, Time now);
  void ack_one(Psn psn);
  void take_rtt_sample(PathIndex index, std::uint32_t tx_time, std::uint32_t delay, Time arrival);
  void end_timeout(const AckBody& ack, bool retransmitted_needlessly);
  void finish_round(Time now);
  void find_overtaken(Time now);
  void detect_losses(Time now);

  // session_transmit.cpp: what timers and polls do
  void run_timers(Time now);
  bool transmit_handshake(Time now, TransmitPacket& out);
  bool transmit_control(Time now, TransmitPacket& out);
  bool take_ack(Time now, ControlPacket& packet);
  bool take_question(Time now, ControlPacket& packet);
  bool transmit_data(Time now, TransmitPacket& out);
  bool may_send_data(Time now);
  bool window_has_room() const { return sent_.next() - sent_.oldest() < window_; }
  std::size_t waiting_bytes() const;
  bool cut_next(Psn& psn);
  Psn newest_in_flight() const;
  void emit_data(Psn psn, std::uint8_t flags, PathIndex avoid, Time now, TransmitPacket& out);
  void emit(const ControlPacket& packet, const Key& key, Time now, TransmitPacket& out);
  PathIndex choose_path(PathIndex avoid);
  Time data_deadline() const;
  bool wants_fin() const { return closing_.wants_fin(queue_.has_uncut()); }

  SessionConfig config_;
  HandshakeMachine handshake_;
  State state_ = State::kConnecting;
  SessionError error_ = SessionError::kNone;
  Offer peer_;
  std::uint16_t pss_ = 0;
  std::uint32_t window_ = 0;
  Rng rng_;
  Psn first_psn_;
  MsgSeq first_msg_;
  EventQueue events_;

  // Sending
  SendQueue queue_;
  SentPackets sent_;
  PathSet paths_;
  LossDetector loss_;
  Congestion congestion_;
  Pacer pacer_;
  std::optional<SendCredit> credit_;
  /// New packets in a row on one path.
  struct Burst {
    PathIndex path = 0;
    int left = 0;  ///< Packets that it may still have.
    int sent = 0;
    bool is_over = false;  ///< There was nothing more, or window or pacer have stopped it.
  };
  Burst burst_;
  bool was_blocked_by_credit_ = false;
  CongestionRound round_;
  Time round_start_{};
  Psn round_end_ = 0;
  bool round_is_over_ = false;
  std::optional<Time> timed_out_at_;  ///< On all paths, and nothing was acknowledged since.
  std::uint32_t acked_now_ = 0;       ///< Packets acknowledged by the packet being processed.

  // Receiving
  std::optional<ReceiveWindow> window_in_;
  MessageReceiver receiver_;
  AckTracker ack_;

  // Both
  Liveness liveness_;
  Time last_run_{};
  PathIndex heard_path_ = kNoPath;
  bool heard_update_ = false;
  Answers answers_;
  Closing closing_;

  SessionStats stats_;
};

}  // namespace harp
