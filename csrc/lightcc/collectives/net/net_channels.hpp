// The channels of one member on one lane of a process set, which all levels of a group share, and
// whether the group still works.
//
// Two members meet in one row or column only, and one operation of the whole group runs at a time,
// so messages match by order alone. An abandoned operation ends the group: its channels are
// cancelled, and the peers hear of it as kPeerFailed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_group.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class NetChannels {
 public:
  /// `members[rank]` is this one.
  NetChannels(Transport& transport,
              std::vector<NetMember> members,
              std::size_t rank,
              std::uint32_t process_set,
              std::uint32_t lane,
              const NetGroupOptions& options);

  const NetGroupOptions& options() const { return options_; }
  /// The channel to, or from, `member`; opened at the first call.
  Result<SendChannel*> sender(std::size_t member);
  Result<RecvChannel*> receiver(std::size_t member);

  /// Ok while the group can be used.
  const Status& status() const { return status_; }
  /// Ends the group for the reason of `status` (the first one stays): no channel touches memory of
  /// a caller any more.
  void fail(const Status& status);

 private:
  ChannelId id_of(std::size_t source, std::size_t destination) const;

  Transport& transport_;
  std::vector<NetMember> members_;
  std::size_t rank_;
  std::uint32_t process_set_;
  std::uint32_t lane_;
  NetGroupOptions options_;
  std::vector<std::unique_ptr<SendChannel>> senders_;
  std::vector<std::unique_ptr<RecvChannel>> receivers_;
  Status status_;
};

}  // namespace lightcc
