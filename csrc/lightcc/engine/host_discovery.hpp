// Finding the ranks that share this rank's host, and sharing memory with them.
//
// They form a tree: the rank at position p of the host connects to the one at (p - 1) / kTreeArity,
// and has at most kTreeArity children. No rank has more to do, or more descriptors, on a larger
// host.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lightcc/engine/membership.hpp"
#include "lightcc/net/authenticated.hpp"
#include "lightcc/rendezvous/store.hpp"

namespace lightcc {

/// What a rank says of itself first.
struct RankCard {
  std::string unix_name;  ///< Its abstract Unix sockets have it.
  std::string host_id;    ///< LIGHT_HOST_ID or empty.
  std::string switches;   ///< Above its host, from the outermost in; empty: not told.
  bool from_slurm = false;
  bool has_gpus = false;
};
inline constexpr std::size_t kMaxCardBytes = 4096;
Bytes encode_card(const RankCard& card);
Result<RankCard> decode_card(const Bytes& bytes);

/// Control ring capacity of one direction, on a host of so many ranks: the leader uses the rings of
/// all. A larger frame flows through it in pieces.
std::size_t control_ring_bytes(std::size_t members);

class HostDiscovery {
 public:
  /// For a world of one rank: nobody to be found by, no socket.
  static std::unique_ptr<HostDiscovery> alone();
  /// Opens this rank's Unix sockets, and puts their name on `card`. `round` outlives it: what
  /// waits, waits for its news, too.
  static Result<std::unique_ptr<HostDiscovery>> open(std::string secret,
                                                     RankCard card,
                                                     RendezvousRound& round);

  const RankCard& card() const { return card_; }

  /// Finds this rank's leader (itself, when no lower rank shares its host). Blocks: where a rank
  /// that should be there is not, for news of its end.
  Result<int> find_leader(const std::vector<RankCard>& cards, int rank, TimePoint deadline);
  /// Shares memory between `ranks` (ascending, this host's). Blocks: until `deadline`.
  Result<HostMembership> assemble(std::vector<int> ranks,
                                  const std::vector<RankCard>& cards,
                                  int rank,
                                  std::uint64_t world_id,
                                  TimePoint deadline);

 private:
  /// What comes down the tree: the segment, and of a leader with grandchildren its life.
  struct Inheritance;

  HostDiscovery(std::string secret,
                RankCard card,
                std::unique_ptr<AuthListener> listener,
                HostMail mail,
                RendezvousRound* round);
  Result<Inheritance> lead(HostMembership& host);
  Result<Inheritance> follow(HostMembership& host,
                             const std::vector<RankCard>& cards,
                             TimePoint deadline);
  Status pass_on(HostMembership& host, const Inheritance& inherited, TimePoint deadline);
  Result<UniqueFd> connect(const RankCard& to, int rank, int parent, TimePoint deadline);
  Result<AuthenticatedSocket> next_child(const std::set<int>& missing, TimePoint deadline);
  Result<Inheritance> receive(int socket, int parent, TimePoint deadline);

  std::string secret_;
  RankCard card_;
  std::unique_ptr<AuthListener> listener_;
  HostMail mail_;
  RendezvousRound* round_;  // Null for a world of one rank.
  std::uint64_t world_id_ = 0;
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
