// What a listening endpoint does with SYN packets: tells those of its clients from all others.
//
// The seal of a SYN is checked first, so a stranger's SYN costs one SipHash and leaves nothing
// behind. A good one is remembered by its nonce while its session exists, so that a repeated SYN
// finds the session it made instead of making another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/auth.hpp"
#include "protocol/handshake.hpp"
#include "protocol/types.hpp"

namespace harp {

class Listener {
 public:
  enum class Verdict : std::uint8_t {
    kIgnore,  ///< Not a SYN for this listener, forged, damaged, or too many sessions.
    kNew,     ///< Make a Session from `syn`, then add() it.
    kKnown,   ///< Give the packet to session `cid`.
  };
  struct Answer {
    Verdict verdict = Verdict::kIgnore;
    Syn syn;
    std::uint32_t tx_time = 0;
    Cid cid = 0;
  };

  Listener(std::uint64_t listen_id, const Secret& secret, std::size_t max_sessions);

  Answer on_packet(std::span<const std::byte> packet) const;
  /// A session was made for the SYN with this nonce.
  void add(const Nonce& nonce, Cid cid);
  /// Session `cid` is finished.
  void remove(Cid cid);

  std::size_t session_count() const { return known_.size(); }

 private:
  struct Known {
    Nonce nonce;
    Cid cid;
  };

  std::uint64_t listen_id_;
  Key key_;
  std::size_t max_sessions_;
  std::vector<Known> known_;
};

}  // namespace harp
