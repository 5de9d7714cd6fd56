// Finding the ranks that share this rank's host, and sharing memory and doorbells with them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lightcc/engine/membership.hpp"
#include "lightcc/net/authenticated.hpp"
#include "lightcc/rendezvous/store.hpp"

namespace lightcc {

/// What a rank says of itself first.
struct RankCard {
  std::string unix_name;  ///< Abstract Unix socket.
  std::string host_id;    ///< LIGHT_HOST_ID or empty.
};
Bytes encode_card(const RankCard& card);
Result<RankCard> decode_card(const Bytes& bytes);

/// Control ring capacity of one direction. A larger frame flows through it in pieces.
inline constexpr std::size_t kControlRingBytes = std::size_t{64} << 10;

class HostDiscovery {
 public:
  /// For a world of one rank: nobody to be found by, no socket.
  static std::unique_ptr<HostDiscovery> alone();
  /// Opens this rank's Unix socket. `round` outlives it: what waits, waits for its news, too.
  static Result<std::unique_ptr<HostDiscovery>> open(std::string secret,
                                                     std::string host_id,
                                                     RendezvousRound& round);

  const RankCard& card() const { return card_; }

  /// Finds this rank's leader (itself, when no lower rank shares its host). Blocks: until
  /// `deadline`.
  Result<int> find_leader(const std::vector<RankCard>& cards,
                          int rank,
                          std::uint64_t world_id,
                          TimePoint deadline);
  /// Shares memory and doorbells between `ranks` (ascending, this host's). Blocks likewise.
  Result<HostMembership> assemble(std::vector<int> ranks, int rank, TimePoint deadline);

 private:
  HostDiscovery(std::string secret,
                RankCard card,
                std::unique_ptr<AuthListener> listener,
                RendezvousRound* round);
  Status lead(HostMembership& host, TimePoint deadline);
  Status follow(HostMembership& host, TimePoint deadline);
  Result<UniqueFd> finish_connecting(const HostMembership& host, TimePoint deadline);
  Result<AuthenticatedSocket> next_member(const HostMembership& host, TimePoint deadline);
  Result<std::vector<UniqueFd>> receive_fds(int socket, std::size_t count, TimePoint deadline);

  std::string secret_;
  RankCard card_;
  std::unique_ptr<AuthListener> listener_;
  RendezvousRound* round_;  // Null for a world of one rank.
  std::uint64_t world_id_ = 0;
  std::unique_ptr<AuthConnector> leader_connector_;
};

/// The control ring between the leader and the member at `index`, upwards or downwards.
std::span<std::byte> control_ring_memory(const HostMembership& host,
                                         std::size_t index,
                                         bool upwards);

/// Where the ranks of the host meet in rounds (OneShotRounds); empty where they are too many.
std::span<std::byte> one_shot_memory(const HostMembership& host);

/// Waits until `fd` is readable. Errors: kTimeout, naming `what`; why the round of
/// `round`, if there is one, has failed.
Status wait_readable(int fd,
                     TimePoint deadline,
                     const std::string& what,
                     RendezvousRound* round = nullptr);

}  // namespace lightcc
