// What a session is made with, and what it counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/time.hpp"
#include "protocol/auth.hpp"
#include "protocol/types.hpp"

namespace harp {

struct SessionConfig {
  Cid local_cid = 0;       ///< Not 0; random in its high bits, so that stale packets miss.
  Nonce nonce{};           ///< Random, from a source that nobody can predict; never used again.
  std::uint64_t seed = 0;  ///< Choices of paths; first numbers where they are not given.
  std::optional<Psn> initial_psn;
  std::optional<MsgSeq> initial_msg;

  std::uint16_t max_pss = 1408;
  std::uint16_t paths = 8;
  /// A client's paths may use so many; those beyond `paths` replace what comes astray at the peer.
  std::uint16_t flows = 8;
  std::uint32_t window_packets = kMaxWindowPackets;  ///< Power of two, at least 64.
  std::uint32_t max_sends = 256;                     ///< Outstanding; power of two.
  std::uint32_t max_receives = 256;
  std::uint32_t eager_packets = 186;  ///< 256 KiB of frames for messages without a receive.
  /// Packets that wait on this host until somebody looks, at most, in bytes of payload; 0: unknown.
  std::uint32_t buffer_bytes = 0;
  bool payload_crc = true;  ///< Off where the NIC has checked the payload.

  Duration peer_timeout = std::chrono::seconds(30);
  Duration connect_timeout = std::chrono::seconds(30);
  Duration heartbeat_interval = std::chrono::seconds(1);
  Duration close_timeout = std::chrono::seconds(3);  ///< For the FIN alone; data has peer_timeout.
  Duration linger = std::chrono::seconds(1);  ///< After the end, for a peer that missed an answer.
  /// Queueing delay that is not called congestion: what the hosts' own scheduling adds is in it.
  Duration queue_allowance = std::chrono::microseconds(50);
  bool competes = false;  ///< With kernel TCP, whose queue would else take the link from it.
  Duration ack_delay = std::chrono::microseconds(25);
  Duration min_rto = std::chrono::milliseconds(2);  ///< 10 ms where nobody polls all the time.
  Duration max_rto = std::chrono::milliseconds(250);
};

/// Counters of one session; they only grow.
struct SessionStats {
  std::uint64_t packets_sent = 0;  ///< All types.
  std::uint64_t packets_received = 0;
  std::uint64_t data_bytes_sent = 0;  ///< Payload, retransmissions included.
  std::uint64_t data_bytes_retransmitted = 0;
  std::uint64_t data_packets_sent = 0;
  std::uint64_t data_packets_received = 0;  ///< New ones.
  std::uint64_t data_bytes_received = 0;    ///< Their payload.
  std::uint64_t retransmitted_order = 0;    ///< Packets, by what found the loss.
  std::uint64_t retransmitted_timeout = 0;
  std::uint64_t tail_probes = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t acks_sent = 0;
  std::uint64_t heartbeats_sent = 0;
  std::uint64_t probes_sent = 0;
  std::uint64_t bad_auth = 0;       ///< Damaged or forged.
  std::uint64_t bad_packets = 0;    ///< Authentic, but not acceptable (stale, malformed body).
  std::uint64_t no_room = 0;        ///< Dropped for want of an eager frame.
  std::uint64_t credit_stalls = 0;  ///< Times that data began to wait for credit.
  std::uint64_t paths_quarantined = 0;
  std::uint64_t paths_moved = 0;  ///< Paths that went to another flow.
};

}  // namespace harp
