// Opens channels when they are first used and cancels all of them when the group ends.
// (Idea: net_links.hpp.)
#include "lightcc/collectives/net/net_links.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

NetLinks::NetLinks(Transport& transport,
                   std::vector<NetMember> members,
                   int rank,
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

Result<SendChannel*> NetLinks::sender(int peer) {
  const auto index = static_cast<std::size_t>(peer);
  if (senders_[index] == nullptr) {
    const ChannelId id{.source = members_[static_cast<std::size_t>(rank_)].world_rank,
                       .destination = members_[index].world_rank,
                       .process_set = process_set_,
                       .lane = lane_};
    LIGHTCC_ASSIGN_OR_RETURN(senders_[index], transport_.connect(members_[index].handle, id));
  }
  return senders_[index].get();
}

Result<RecvChannel*> NetLinks::receiver(int peer) {
  const auto index = static_cast<std::size_t>(peer);
  if (receivers_[index] == nullptr) {
    const ChannelId id{.source = members_[index].world_rank,
                       .destination = members_[static_cast<std::size_t>(rank_)].world_rank,
                       .process_set = process_set_,
                       .lane = lane_};
    LIGHTCC_ASSIGN_OR_RETURN(receivers_[index], transport_.accept(id));
  }
  return receivers_[index].get();
}

std::span<std::byte> NetLinks::scratch(std::size_t bytes) {
  const std::size_t lines = bytes / sizeof(Line) + (bytes % sizeof(Line) != 0 ? 1 : 0);
  if (lines > scratch_lines_) {
    scratch_lines_ = 0;
    scratch_.reset();
    scratch_ = std::make_unique_for_overwrite<Line[]>(lines);  // NOLINT: see the declaration
    scratch_lines_ = lines;
  }
  return std::as_writable_bytes(std::span(scratch_.get(), lines)).first(bytes);
}

void NetLinks::fail(const Status& status) {
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

NetWork::~NetWork() {
  if (phase_ != Phase::kFinished) {
    links_->fail({ErrorCode::kShutDown, "an earlier operation of this group was abandoned"});
  }
}

Result<Progress> NetWork::advance() {
  if (!links_->status().ok()) {
    return links_->status();
  }
  if (phase_ == Phase::kFinished) {
    return Progress::kDone;
  }
  if (phase_ == Phase::kNew) {
    phase_ = Phase::kRunning;
    if (const Status begun = begin(); !begun.ok()) {
      links_->fail(begun);
      return begun;
    }
  }
  auto progress = step();
  if (!progress.ok()) {
    links_->fail(progress.status());
  } else if (progress.value() == Progress::kDone) {
    phase_ = Phase::kFinished;
  }
  return progress;
}

}  // namespace lightcc
