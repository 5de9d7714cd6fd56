// Joining a world: from a store and a secret to a topology, control links, shared memory and a
// transport. Blocks; runs once, before the progress loop exists.
//
// 1. Every rank opens abstract Unix sockets and publishes a "card": their name, its host id and the
//    switches above its host. Beside it are a digest of the knobs on which all must agree, and a
//    number: rank 0's is the world's.
// 2. Every rank looks for the names of lower ranks in ascending order. The first that is there
//    shares this rank's host and is its leader; a rank that finds none leads its host. Names of
//    hosts play no part.
// 3. Every rank publishes its leader, and the whole is the topology. The ranks of a host then
// connect as a tree, and prove the secret. Down the tree comes one memory segment
//    of the leader's (sleep words, control rings).
// 4. With more than one host, ranks publish their transport's handle, leaders their control
//    address, and leaders connect to their parents in a tree. Blocks of one host that are to act as
//    hosts (LIGHT_INTRA_SIZE) have transports, too.
//
// All of it happens in one round of the store, which a rank that cannot go on fails with its
// reason, and which fails when a rank dies. Whatever a rank waits for, it hears of that at once. A
// rank sends the store a constant number of messages, and each is answered with what all have sent.
// Beside that, nobody talks to more ranks than it has neighbours in a tree.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/engine/control_link.hpp"
#include "lightcc/engine/store_exchange.hpp"
#include "lightcc/engine/world.hpp"
#include "lightcc/net/socket_address.hpp"
#include "lightcc/transport/shm/doorbell.hpp"
#include "lightcc/transport/shm/host_mail.hpp"
#include "lightcc/transport/shm/segment.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// A process of this host whose end this rank sees.
struct WatchedProcess {
  std::size_t position = 0;  ///< Where its rank is among those of the host.
  UniqueFd socket;           ///< Its end means that the process is gone.
  UniqueFd pidfd;            ///< So does what comes here; empty where there is none.
  std::int32_t pid = 0;      ///< 0: unknown.
};

/// The ranks of this rank's host, and what they share.
struct HostMembership {
  std::vector<int> ranks;      ///< Ascending; the first leads.
  int index = 0;               ///< This rank's, in `ranks`.
  UniqueFd bell;               ///< This rank's eventfd.
  HostMail mail;               ///< To and from the others; without a socket where there are none.
  ShmSegment segment;          ///< Sleep words, control rings, one-shot rounds.
  std::span<SleepWord> words;  ///< By index; in `segment`.
  /// Parent and children in the host's tree; and the leader, on whose ring each depends.
  std::vector<WatchedProcess> watched;
  UniqueFd life;  ///< On the leader: ranks that are not its children see it close.

  bool is_leader() const { return index == 0; }
  /// Wakes the rank at `position`, which is not this one.
  Doorbell doorbell(std::size_t position) const {
    return {&words[position], mail.fd(), &mail.name_of(position)};
  }
};

struct Membership {
  Topology topology;
  std::uint64_t world_id = 0;
  bool has_gpus = false;                ///< Some rank has, and may use them.
  std::vector<int> host_of;             ///< Host number by rank.
  std::vector<std::vector<int>> hosts;  ///< Ranks by host, ascending; hosts by their lowest rank.
  /// By rank: those above its host, from the outermost in (grid_shape.hpp). Empty: nobody told.
  std::vector<std::string> switches;
  HostMembership host;
  std::optional<ControlLink> parent;     ///< Absent on rank 0.
  std::vector<ControlLink> children;     ///< Local ranks (leader), leaders of child hosts.
  std::optional<SocketAddress> address;  ///< The transport and control connections have it.
  std::unique_ptr<Transport> transport;  ///< Null where ranks need none to reach others.
  std::vector<TransportHandle> transport_handles;  ///< By rank; empty when there is no transport.

  std::string switches_of(std::int32_t rank) const {
    return switches.empty() ? std::string() : switches[static_cast<std::size_t>(rank)];
  }
};

/// Whether `epoch` has a rank of a world, and a store where that needs one. kInvalidArgument.
Status check_epoch(const Epoch& epoch);
/// Collective. `joining`: null for a world of one rank. Errors: kTimeout naming the ranks that did
/// not come, kSystem, kPeerFailed, kInvalidArgument for knobs that cannot work here; why another
/// rank cannot join.
Result<Membership> join_world(const WorldOptions& options, const Joining* joining);

}  // namespace lightcc
