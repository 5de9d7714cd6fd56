// Opens channels when they are first used and cancels all of them when the group ends.
// (Idea: net_channels.hpp.)
#include "lightcc/collectives/net/net_channels.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lightcc {
namespace {

// Lanes of groups have lower numbers. Bits above tell further channels to the same member apart.
constexpr std::uint32_t kLaneBits = 16;

}  // namespace

NetChannels::NetChannels(Transport& transport,
                         std::vector<NetMember> members,
                         std::size_t rank,
                         std::uint32_t process_set,
                         std::uint32_t lane,
                         const NetGroupOptions& options)
    : transport_(transport), rank_(rank), process_set_(process_set), options_(options) {
  peers_.reserve(members.size());
  for (NetMember& member : members) {
    peers_.push_back({.member = std::move(member), .first = peers_.size(), .lane = lane});
  }
}

std::vector<std::string> NetChannels::switches_of(const std::vector<std::size_t>& members) const {
  std::vector<std::string> switches;
  switches.reserve(members.size());
  for (const std::size_t member : members) {
    switches.push_back(peers_[member].member.switches);
  }
  return switches;
}

std::size_t NetChannels::again(std::size_t member) {
  Peer& first = peers_[peers_[member].first];
  Peer next{.member = first.member, .first = peers_[member].first};
  next.lane = first.lane + (first.numbers++ << kLaneBits);
  peers_.push_back(std::move(next));
  return peers_.size() - 1;
}

Result<SendChannel*> NetChannels::sender(std::size_t member) {
  Peer& peer = peers_[member];
  if (peer.sender == nullptr) {
    const ChannelId id{.source = peers_[rank_].member.world_rank,
                       .destination = peer.member.world_rank,
                       .process_set = process_set_,
                       .lane = peer.lane};
    LIGHTCC_ASSIGN_OR_RETURN(peer.sender, transport_.connect(peer.member.handle, id));
  }
  return peer.sender.get();
}

Result<RecvChannel*> NetChannels::receiver(std::size_t member) {
  Peer& peer = peers_[member];
  if (peer.receiver == nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(peer.receiver,
                             transport_.accept({.source = peer.member.world_rank,
                                                .destination = peers_[rank_].member.world_rank,
                                                .process_set = process_set_,
                                                .lane = peer.lane}));
  }
  return peer.receiver.get();
}

void NetChannels::fail(const Status& status) {
  if (!status_.ok()) {
    return;
  }
  status_ = status;
  for (const Peer& peer : peers_) {
    if (peer.sender != nullptr) {
      peer.sender->cancel();
    }
    if (peer.receiver != nullptr) {
      peer.receiver->cancel();
    }
  }
}

}  // namespace lightcc
