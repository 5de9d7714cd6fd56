// What all Works of one NetGroup share: the channels to the other members, scratch memory, and
// whether the group still works.
//
// A group runs one Work at a time, so channels and scratch need no further bookkeeping. Messages
// match by order alone: every algorithm derives, from the arguments of the operation, the same
// sequence of messages for both ends of a channel. That is why an abandoned operation ends the
// group: its channels are cancelled, and the peers hear of it as kPeerFailed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_group.hpp"
#include "lightcc/collectives/share_plan.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

class NetLinks {
 public:
  NetLinks(Transport& transport,
           std::vector<NetMember> members,
           int rank,
           std::uint32_t process_set,
           std::uint32_t lane,
           const NetGroupOptions& options);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const NetGroupOptions& options() const { return options_; }
  /// The member `distance` places after (before, if negative) this one.
  int neighbour(int distance) const { return (rank_ + size() + distance % size()) % size(); }

  /// The channel to, or from, member `peer`; opened at the first call.
  Result<SendChannel*> sender(int peer);
  Result<RecvChannel*> receiver(int peer);

  /// 64-byte-aligned memory with undefined content, the same for every Work: it is warm in the
  /// cache. Valid until the next call.
  std::span<std::byte> scratch(std::size_t bytes);

  /// Ok while the group can be used.
  const Status& status() const { return status_; }
  /// Ends the group for the reason of `status` (the first one stays): no channel touches memory of
  /// a caller any more.
  void fail(const Status& status);

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };

  Transport& transport_;
  std::vector<NetMember> members_;
  int rank_;
  std::uint32_t process_set_;
  std::uint32_t lane_;
  NetGroupOptions options_;
  std::vector<std::unique_ptr<SendChannel>> senders_;
  std::vector<std::unique_ptr<RecvChannel>> receivers_;
  std::unique_ptr<Line[]> scratch_;  // NOLINT(modernize-avoid-c-arrays): not to be initialised
  std::size_t scratch_lines_ = 0;
  Status status_;
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

/// Base of the reductions that move one piece of each chunk for each member.
class NetReduction : public NetWork {
 public:
  /// With `gather`, every member gets every share (all-reduce); without, each its own.
  NetReduction(std::shared_ptr<NetLinks> links,
               BucketView bucket,
               SharePlan plan,
               const Reduction& reduction,
               bool gather)
      : NetWork(std::move(links)),
        bucket_(std::move(bucket)),
        plan_(std::move(plan)),
        reduction_(reduction),
        gather_(gather) {}

 protected:
  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes): of its two kinds alone.
  BucketView bucket_;
  SharePlan plan_;
  Reduction reduction_;
  bool gather_;
  // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)
};

}  // namespace lightcc
