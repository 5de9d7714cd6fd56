// Small all-reduces between the ranks of one host, without a report and an announcement
// (collectives/one_shot_rounds.hpp).
//
// What a rank waits for alone is held here before it is reported. The ranks that come within
// moments combine it by themselves. Otherwise it is given back, and reported as any other. Nothing
// is agreed on in advance: ranks compare what they bring, and where that differs, all report. A
// rank that is alone in its world waits for nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/clock.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/one_shot_rounds.hpp"
#include "lightcc/control/inline_allreduce.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/operation_table.hpp"

namespace lightcc {

/// Thread: the progress loop's.
class OneShotAllreduce {
 public:
  /// Null where there is nothing to meet in: several hosts.
  /// What is given outlives it.
  static std::unique_ptr<OneShotAllreduce> make(const Membership& world,
                                                FusionRule fusion,
                                                CombineInline combine,
                                                const Clock& clock,
                                                OperationTable& operations);

  /// Holds `operation`, the only one in flight, or completes it. False: it is to be reported.
  /// Errors: as of advance().
  Result<bool> take(InFlight& operation);
  bool holds() const { return held_ != nullptr; }
  enum class Held : std::uint8_t { kWaits, kDone, kToReport };
  /// What became of the operation that is held. kDone: it is complete. kToReport: release() it.
  /// `may_wait`: not where this rank is about to sleep, or has more to do. Errors: kSystem where
  /// there is no memory for its output.
  Result<Held> advance(bool may_wait);
  InFlight& release() { return *std::exchange(held_, nullptr); }
  /// The world is over. Completes what ranks have met for: others may have their result and be
  /// gone. Anything else that is held ends with the world.
  void finish();
  std::uint64_t count() const { return count_; }

 private:
  OneShotAllreduce(const Membership& world,
                   CombineInline combine,
                   const Clock& clock,
                   OperationTable& operations);
  bool suits(const Operation& operation) const;
  bool has_patience();
  /// `inputs`: as for CombineInline.
  Status combine(std::span<const std::byte> inputs);
  void note(bool met);

  OneShotRounds rounds_;  // Not used in a world of one rank.
  std::size_t max_bytes_;
  std::vector<std::int32_t> members_;
  CombineInline combine_;
  const Clock& clock_;
  OperationTable& operations_;
  InFlight* held_ = nullptr;
  Bytes identity_;
  TimePoint until_;
  std::uint32_t looks_ = 0;
  std::uint32_t misses_ = 0;         // Rounds one after another in which ranks did not meet.
  std::uint32_t not_first_for_ = 0;  // Operations that follow.
  std::uint64_t count_ = 0;
};

}  // namespace lightcc
