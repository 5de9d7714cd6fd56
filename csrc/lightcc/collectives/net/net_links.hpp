// What all Works of one NetGroup share: its members among those that the channels reach, and
// scratch memory.
//
// A group runs one Work at a time, so scratch needs no further bookkeeping. Every algorithm
// derives, from the arguments of the operation, the same sequence of messages for both ends of a
// channel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_channels.hpp"
#include "lightcc/collectives/net/net_group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class NetLinks {
 public:
  /// `members` are numbers of `channels`' own, and `members[rank]` is this one. They combine in the
  /// order of levels that have the widths `order` (grid_order.hpp).
  NetLinks(std::shared_ptr<NetChannels> channels,
           std::vector<std::size_t> members,
           int rank,
           std::vector<std::size_t> order)
      : channels_(std::move(channels)),
        members_(std::move(members)),
        rank_(rank),
        order_(std::move(order)) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const NetGroupOptions& options() const { return channels_->options(); }
  const std::vector<std::size_t>& order() const { return order_; }
  /// The member `distance` places after (before, if negative) this one.
  int neighbour(int distance) const { return (rank_ + size() + distance % size()) % size(); }

  /// The channel to, or from, member `peer`; opened at the first call.
  Result<SendChannel*> sender(int peer) {
    return channels_->sender(members_[static_cast<std::size_t>(peer)]);
  }
  Result<RecvChannel*> receiver(int peer) {
    return channels_->receiver(members_[static_cast<std::size_t>(peer)]);
  }

  /// 64-byte-aligned memory with undefined content, the same for every Work: it is warm in the
  /// cache. Valid until the next call.
  std::span<std::byte> scratch(std::size_t bytes);

  // Whether the group, with all levels, can be used; and its end.
  const Status& status() const { return channels_->status(); }
  void fail(const Status& status) { channels_->fail(status); }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };

  std::shared_ptr<NetChannels> channels_;
  std::vector<std::size_t> members_;
  int rank_;
  std::vector<std::size_t> order_;
  std::unique_ptr<Line[]> scratch_;  // NOLINT(modernize-avoid-c-arrays): not to be initialised
  std::size_t scratch_lines_ = 0;
};

/// One direction of one channel as one Work sees it: a sequence of positions, most of which are
/// messages (a position whose message would be empty is skipped on both ends), with few
/// outstanding. `Channel` is SendChannel or RecvChannel.
template <typename Channel>
class Outstanding {
 public:
  /// Positions that may be outstanding.
  static constexpr std::size_t kMax = 16;

  Outstanding() = default;
  explicit Outstanding(Channel* channel) : channel_(channel) {}

  Channel& channel() { return *channel_; }
  std::size_t posted() const { return posted_; }  ///< Positions posted or skipped.
  std::size_t done() const { return done_; }      ///< Positions at the front that are complete.
  bool full() const { return posted_ - done_ == kMax; }
  bool idle() const { return posted_ == done_; }
  /// The request at position done(). Call only when not idle(); kSkipped if it has none.
  RequestId oldest() const { return requests_[done_ % kMax]; }

  void note(RequestId request) { requests_[posted_++ % kMax] = request; }
  void skip() { note(kSkipped); }
  /// Completes the position at the front if it can be; false when it cannot, or there is none.
  Result<bool> settle_one() {
    if (idle()) {
      return false;
    }
    if (oldest() != kSkipped) {
      const auto complete = channel_->test(oldest());
      if (!complete.ok() || !complete.value()) {
        return complete;
      }
    }
    ++done_;
    return true;
  }
  /// Completes all that can be; true when any was.
  Result<bool> settle() {
    bool moved = false;
    while (true) {
      const auto one = settle_one();
      if (!one.ok()) {
        return one.status();
      }
      if (!one.value()) {
        return moved;
      }
      moved = true;
    }
  }

  static constexpr RequestId kSkipped = ~RequestId{0};

 private:
  Channel* channel_ = nullptr;
  std::size_t posted_ = 0;
  std::size_t done_ = 0;
  std::array<RequestId, kMax> requests_{};
};

using SendQueue = Outstanding<SendChannel>;
using RecvQueue = Outstanding<RecvChannel>;

/// Base of the Works of a NetGroup: dropped before its end, or failed, it ends the group.
///
/// A Work does not poll the transport: whoever advances it polls in between.
class NetWork : public Work {
 public:
  explicit NetWork(std::shared_ptr<NetLinks> links) : links_(std::move(links)) {}
  NetWork(const NetWork&) = delete;
  NetWork& operator=(const NetWork&) = delete;
  ~NetWork() override;
  Result<Progress> advance() final;

 protected:
  NetLinks& links() { return *links_; }
  const NetLinks& links() const { return *links_; }
  /// Called once, before the first step().
  virtual Status begin() = 0;
  /// One pass over everything that could move.
  virtual Result<Progress> step() = 0;

 private:
  enum class Phase : std::uint8_t { kNew, kRunning, kFinished };

  std::shared_ptr<NetLinks> links_;
  Phase phase_ = Phase::kNew;
};

}  // namespace lightcc
