// Which channels a listening transport has open, and the connections that came before them.
//
// A peer may connect before anybody here accepted the channel: its connections are parked, bounded
// in number and in age, until accept() comes. A second connection of one index, and a sender older
// than the one that is known, are closed. When a sender was replaced by a newer one, the newer
// connections wait for the next accept() of that channel. How a connection says whose it is, and
// which clock it ages by, is the transport's business.
//
// Invariant: no two parked connections of one channel are of different senders.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/transport/channel/channel_hello.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

/// `Channel` is a RecvMachine with attach(connection, hello); destroying a `Connection` closes it.
/// Channels may outlive the directory.
template <typename Channel, typename Connection>
class ChannelDirectory {
 public:
  explicit ChannelDirectory(std::size_t max_parked) : max_parked_(max_parked) {}

  /// Makes the channel from `args` and gives it what is parked for it. kInvalidArgument when there
  /// is one already.
  template <typename... Args>
  Result<std::unique_ptr<Channel>> accept(const ChannelId& id, Args&&... args) {
    if (channels_->contains(id)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the channel %u -> %u (process set %u, lane %u) was accepted already",
                        id.source,
                        id.destination,
                        id.process_set,
                        id.lane);
    }
    auto channel = std::make_unique<Channel>(std::forward<Args>(args)...);
    channel->set_on_destroyed([channels = std::weak_ptr(channels_), id] {
      if (const auto open = channels.lock()) {
        open->erase(id);
      }
    });
    channels_->emplace(id, channel.get());
    attach_parked(id, *channel);
    return channel;
  }

  /// Brings `connection` to its channel, or parks it, or closes it.
  void admit(Connection connection, const ChannelHello& hello, TimePoint now) {
    const auto found = channels_->find(hello.channel);
    Channel* const channel = found == channels_->end() ? nullptr : found->second;
    if (channel != nullptr && channel->lacks(hello)) {
      channel->attach(std::move(connection), hello);
    } else if (channel == nullptr || hello.attempt > channel->attempt()) {
      park(std::move(connection), hello, now);
    }
  }

  /// When the oldest of the parked connections came.
  std::optional<TimePoint> oldest_parked() const {
    return parked_.empty() ? std::nullopt : std::optional(parked_.front().since);
  }
  /// Closes parked connections, oldest first, while `is_old(when it came)`.
  template <typename IsOld>
  void drop_parked(const IsOld& is_old) {
    while (!parked_.empty() && is_old(parked_.front().since)) {
      parked_.pop_front();
    }
  }

  template <typename Predicate>
  bool any_channel(const Predicate& predicate) const {
    return std::ranges::any_of(*channels_,
                               [&](const auto& entry) { return predicate(*entry.second); });
  }

 private:
  struct Parked {
    Connection connection;
    ChannelHello hello;
    TimePoint since;
  };

  void park(Connection connection, const ChannelHello& hello, TimePoint now) {
    for (auto other = parked_.begin(); other != parked_.end();) {
      if (!(other->hello.channel == hello.channel)) {
        ++other;
        continue;
      }
      if (other->hello.attempt > hello.attempt || other->hello == hello) {
        return;  // Stale, or a duplicate.
      }
      other = other->hello.attempt < hello.attempt ? parked_.erase(other) : std::next(other);
    }
    if (parked_.size() < max_parked_) {
      parked_.push_back({std::move(connection), hello, now});
    }
  }

  void attach_parked(const ChannelId& id, Channel& channel) {
    for (auto parked = parked_.begin(); parked != parked_.end();) {
      if (parked->hello.channel == id && channel.lacks(parked->hello)) {
        channel.attach(std::move(parked->connection), parked->hello);
        parked = parked_.erase(parked);
      } else {
        ++parked;
      }
    }
  }

  const std::size_t max_parked_;
  std::shared_ptr<std::map<ChannelId, Channel*>> channels_ =
      std::make_shared<std::map<ChannelId, Channel*>>();  ///< Channels know it weakly.
  std::list<Parked> parked_;                              ///< Oldest first.
};

}  // namespace lightcc
