#include "lightcc/engine/one_shot_allreduce.hpp"

#include <algorithm>
#include <utility>

#include "lightcc/control/agreement.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/engine/host_discovery.hpp"

namespace lightcc {
namespace {

// How long a rank waits for others before it reports. Ranks further apart than this gain nothing.
constexpr Duration kPatience = std::chrono::microseconds(50);
// The clock is read once in so many looks.
constexpr std::uint32_t kLooksBetweenTimes = 8;
// So many rounds in vain change nothing. Each one that follows doubles the number of operations for
// which this rank is not the first to wait, up to a limit.
constexpr std::uint32_t kFreeMisses = 3;
constexpr std::uint32_t kMaxMisses = kFreeMisses + 5;

}  // namespace

std::unique_ptr<OneShotAllreduce> OneShotAllreduce::make(const Membership& world,
                                                         FusionRule fusion,
                                                         CombineInline combine,
                                                         const Clock& clock,
                                                         OperationTable& operations) {
  const std::size_t members = world.host.ranks.size();
  if (members > OneShotRounds::kMaxMembers || world.hosts.size() > 1 ||
      world.transport != nullptr || fusion == FusionRule::kHorovod) {
    return nullptr;
  }
  return std::unique_ptr<OneShotAllreduce>(
      new OneShotAllreduce(world, std::move(combine), clock, operations));
}

OneShotAllreduce::OneShotAllreduce(const Membership& world,
                                   CombineInline combine,
                                   const Clock& clock,
                                   OperationTable& operations)
    : rounds_(world.host.ranks.size() > 1 ? one_shot_memory(world.host) : std::span<std::byte>(),
              world.host.ranks.size(),
              static_cast<std::size_t>(world.host.index)),
      max_bytes_(std::min(kInlineBytes, rounds_.max_input())),
      members_(world.host.ranks.begin(), world.host.ranks.end()),
      combine_(std::move(combine)),
      clock_(clock),
      operations_(operations) {}

bool OneShotAllreduce::suits(const Operation& operation) const {
  const Signature& s = operation.request.signature;
  return s.process_set == kGlobalProcessSet && s.fusion == FusionWish() &&
         may_be_inline(s, std::max<std::size_t>(members_.size(), 2), max_bytes_) &&
         operation.ready == nullptr;
}

// hot
Result<bool> OneShotAllreduce::take(InFlight& operation) {
  if (!suits(operation.operation)) {
    return false;
  }
  if (members_.size() == 1) {
    held_ = &operation;
    LIGHTCC_RETURN_IF_ERROR(combine(input_at_hand(operation.operation)));
    return true;
  }
  identity_.clear();
  encode_signature(operation.signature(), identity_);  // All that ranks must agree on.
  if (identity_.size() > OneShotRounds::kMaxIdentity) {
    return false;
  }
  const bool may_be_first = not_first_for_ == 0;
  not_first_for_ -= may_be_first ? 0 : 1;
  const OneShotRounds::Entry entry =
      rounds_.enter(identity_, input_at_hand(operation.operation), may_be_first);
  if (entry != OneShotRounds::Entry::kEntered) {
    if (entry == OneShotRounds::Entry::kGivenUp) {
      note(false);
    }
    return false;
  }
  held_ = &operation;
  looks_ = 0;
  LIGHTCC_ASSIGN_OR_RETURN(const Held held, advance(true));  // The others may be there.
  if (held == Held::kToReport) {
    release();
  }
  return held != Held::kToReport;
}

bool OneShotAllreduce::has_patience() {
  if (looks_++ % kLooksBetweenTimes != 0) {
    return true;
  }
  const TimePoint now = clock_.now();
  if (looks_ == 1) {
    until_ = now + kPatience;
  }
  return now < until_;
}

// hot
Result<OneShotAllreduce::Held> OneShotAllreduce::advance(bool may_wait) {
  OneShotRounds::View view = rounds_.look();
  if (view == OneShotRounds::View::kWaiting) {
    if (may_wait && has_patience()) {
      return Held::kWaits;
    }
    view = rounds_.give_up() ? OneShotRounds::View::kGivenUp : rounds_.look();
  }
  const bool met = view == OneShotRounds::View::kMet;
  const Status combined = met ? combine(rounds_.inputs()) : Status();
  rounds_.leave();
  note(met);
  LIGHTCC_RETURN_IF_ERROR(combined);
  return met ? Held::kDone : Held::kToReport;
}

void OneShotAllreduce::finish() {
  if (held_ != nullptr && rounds_.look() == OneShotRounds::View::kMet) {
    (void)combine(rounds_.inputs());  // Without memory for its output it ends with the world, too.
  }
  held_ = nullptr;
}

Status OneShotAllreduce::combine(std::span<const std::byte> inputs) {
  InFlight& operation = *std::exchange(held_, nullptr);
  const Signature& s = operation.signature();
  Outcome outcome;
  Status status;
  LIGHTCC_ASSIGN_OR_RETURN(
      std::byte * out,
      output_for(operation.operation, s.shape, outcome, status, [](std::size_t bytes) {
        return std::make_shared<OutputBuffer>(bytes);
      }));
  (void)combine_(s, members_, inputs, {out, static_cast<std::size_t>(byte_count(s))});
  ++count_;
  operations_.complete(operation, status, status.ok() ? std::move(outcome) : Outcome());
  return {};
}

void OneShotAllreduce::note(bool met) {
  misses_ = met ? 0 : std::min(misses_ + 1, kMaxMisses);
  not_first_for_ = misses_ > kFreeMisses ? 1U << (misses_ - kFreeMisses) : 0;
}

}  // namespace lightcc
