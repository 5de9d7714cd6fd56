// The channels of one member on one lane of a process set, which all levels of a group share, and
// whether the group still works.
//
// One operation of the whole group runs at a time. Two members meet in one row or column of a
// level, or in several columns if both are of shorter rows. Then they have channels of their own
// for each column. So messages match by order alone. An abandoned operation ends the group: its
// channels are cancelled, and the peers hear of it as kPeerFailed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
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
  std::vector<std::string> switches_of(const std::vector<std::size_t>& members) const;
  /// Another number of `member`, with channels of its own. Both ends ask for theirs in one order.
  std::size_t again(std::size_t member);
  /// The channel to, or from, `member`; opened at the first call.
  Result<SendChannel*> sender(std::size_t member);
  Result<RecvChannel*> receiver(std::size_t member);

  /// Ok while the group can be used.
  const Status& status() const { return status_; }
  /// Ends the group for the reason of `status` (the first one stays): no channel touches memory of
  /// a caller any more.
  void fail(const Status& status);

 private:
  struct Peer {
    NetMember member;
    std::size_t first = 0;      ///< Its first number.
    std::uint32_t lane = 0;     ///< Its channels have it.
    std::uint32_t numbers = 1;  ///< How many it has, where this is the first.
    std::unique_ptr<SendChannel> sender = nullptr;
    std::unique_ptr<RecvChannel> receiver = nullptr;
  };

  Transport& transport_;
  std::vector<Peer> peers_;  ///< By number; those that members have at first are their ranks.
  std::size_t rank_;
  std::uint32_t process_set_;
  NetGroupOptions options_;
  Status status_;
};

}  // namespace lightcc
