// Opens channels when they are first used and cancels all of them when the group ends.
// (Idea: net_channels.hpp.)
#include "lightcc/collectives/net/net_channels.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lightcc {

NetChannels::NetChannels(Transport& transport,
                         std::vector<NetMember> members,
                         std::size_t rank,
                         std::uint32_t process_set,
                         std::uint32_t lane,
                         const NetGroupOptions& options)
    : transport_(transport),
      members_(std::move(members)),
      rank_(rank),
      process_set_(process_set),
      lane_(lane),
      options_(options),
      senders_(members_.size()),
      receivers_(members_.size()) {}

ChannelId NetChannels::id_of(std::size_t source, std::size_t destination) const {
  return {.source = members_[source].world_rank,
          .destination = members_[destination].world_rank,
          .process_set = process_set_,
          .lane = lane_};
}

Result<SendChannel*> NetChannels::sender(std::size_t member) {
  if (senders_[member] == nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(senders_[member],
                             transport_.connect(members_[member].handle, id_of(rank_, member)));
  }
  return senders_[member].get();
}

Result<RecvChannel*> NetChannels::receiver(std::size_t member) {
  if (receivers_[member] == nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(receivers_[member], transport_.accept(id_of(member, rank_)));
  }
  return receivers_[member].get();
}

void NetChannels::fail(const Status& status) {
  if (!status_.ok()) {
    return;
  }
  status_ = status;
  for (const auto& channel : senders_) {
    if (channel != nullptr) {
      channel->cancel();
    }
  }
  for (const auto& channel : receivers_) {
    if (channel != nullptr) {
      channel->cancel();
    }
  }
}

}  // namespace lightcc
