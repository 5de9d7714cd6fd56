// The sequencer: on rank 0, decides what runs next, for all process sets. At the leader of another
// host it does so for those whose ranks are all on that host.
//
// Frameworks submit tensors in different orders on different ranks; collectives must start in one
// order everywhere. Every rank reports what it is ready for; when all members of an operation have
// reported the same, the sequencer announces it, in buckets, with a sequence number and a lane. It
// does no I/O, reads no clock of its own and never blocks: reports in, commands out. Mismatches,
// joins, stalls and shutdown are found here because only here is the whole picture.
//
// A named operation gets a slot: from then on a rank that asks for the very same thing says so in a
// few bytes, and so does the announcement. Slots are never evicted; beyond the capacity, and for
// automatic names (they do not come back), operations travel with their full signature.
//
// A receive usually has the name of its send. An open one (of any source) has not, and is matched
// here: the first one of a mailbox takes the first send that it may take. Reports of a rank come in
// the order of its calls, so messages of a pair of ranks do, too (engine/names).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/control/inline_allreduce.hpp"
#include "lightcc/control/lateness.hpp"
#include "lightcc/control/process_set_table.hpp"
#include "lightcc/control/slow_ranks.hpp"
#include "lightcc/fusion/cost_line.hpp"
#include "lightcc/fusion/strategy.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// The first slot of a sequencer that decides for one host: beyond all those of rank 0.
inline constexpr std::uint32_t kFirstHostSlot = std::uint32_t{1} << 31;

struct SequencerOptions {
  int world_size = 1;
  int rank = 0;                  ///< Where it runs.
  std::uint32_t first_slot = 0;  ///< Slots are numbered from here.
  int num_lanes = 1;             ///< In use; never more than in the beginning.
  std::size_t slot_capacity = 1024;
  FusionRule fusion = FusionRule::kAuto;  ///< For tensors that ask for kDefault.
  std::uint64_t fusion_threshold_bytes = std::uint64_t{64} << 20;
  std::uint64_t horovod_threshold_bytes = std::uint64_t{128} << 20;
  Duration horovod_cycle = std::chrono::milliseconds(1);  ///< Zero: none.
  bool stall_check = true;
  Duration stall_warning = std::chrono::seconds(60);
  Duration stall_shutdown{0};                     ///< Zero: never.
  Duration slow_time = std::chrono::seconds(10);  ///< As SlowRanks has it.
  CombineInline combine_inline;  ///< Empty: inputs that come with reports are not used.
};

/// Thread: one at a time.
class Sequencer {
 public:
  explicit Sequencer(const SequencerOptions& options)
      : Sequencer(options, ProcessSetTable(options.world_size)) {}
  Sequencer(const SequencerOptions& options, ProcessSetTable process_sets);

  /// Takes in one rank's report. kPeerFailed: the report makes no sense; the world must end.
  Status on_report(const Report& report, TimePoint now);
  /// The same for ranks that all say `what`, in this order. More than one ask for an operation of
  /// all members of a process set.
  /// `inputs`: of some of them.
  Status on_reports(std::span<const std::int32_t> ranks,
                    const Report::What& what,
                    TimePoint now,
                    std::span<const InlineInput> inputs = {});
  // What rank 0 has announced, to be told to a sequencer elsewhere.
  void add_process_set(std::uint32_t id, const std::vector<std::int32_t>& ranks) {
    process_sets_.add(id, ranks);
  }
  /// Its operations are forgotten; ranks know by themselves that they can never complete.
  void remove_process_set(std::uint32_t process_set);
  void end_joins();
  /// Nothing is announced any more.
  void shut_down() { shut_down_ = true; }

  /// This rank finished one bucket of `process_set` on `lane`: the lane can take another.
  void on_bucket_done(std::uint32_t process_set, std::uint32_t lane, TimePoint now);
  /// Everything that is to be announced now, in order.
  std::vector<Command> take_commands(TimePoint now);

  /// Whether ready tensors wait for a time, which comes at next_release(): for Horovod's next
  /// cycle, or for the bucket that is under way to come near its end.
  bool has_held() const { return held_count_ > 0 || next_close_ != TimePoint::max(); }
  TimePoint next_release() const;
  /// Lets go what waited for Horovod's cycle, if that has begun.
  void release_held(TimePoint now);

  /// Whether operations that are complete wait for a lane, or for Horovod's cycle.
  bool has_ready() const;
  /// Operations that some ranks wait for and others have not asked for.
  bool has_pending() const { return !pending_.empty(); }
  std::size_t slot_count() const { return slots_.size(); }
  struct StallReport {
    std::vector<std::string> warnings;  ///< New since the last check.
    Status fatal;                       ///< Not ok: a stall beyond the shutdown time.
  };
  StallReport check_stalls(TimePoint now);
  Lateness lateness(TimePoint now) const;
  /// Ranks that have become slow since the last call, or are not slow any more.
  std::vector<SlowChange> take_slow_changes() { return slow_ranks_.take_changes(); }

 private:
  // Ranks that put an operation in one group.
  struct GroupOfSome {
    std::string key;  // Empty: in none.
    std::uint32_t size = 0;
    std::size_t ranks = 0;
  };
  // One operation that at least one rank has asked for. Used again for another one when it is over,
  // with the memory that its lists and texts have.
  struct Pending {
    void begin(const Signature& signature, int rank, TimePoint now);

    Signature common;  // The first reporter's, but for the most steps_ahead of all.
    int first_rank = -1;
    std::shared_ptr<const std::vector<std::int32_t>> members;
    std::vector<std::uint8_t> reported;  // By member index.
    std::size_t reported_count = 0;
    std::vector<std::int64_t> per_member;           // Allgather: first dimensions.
    std::vector<std::vector<std::int64_t>> splits;  // Alltoall.
    std::vector<std::int32_t> set_ranks;            // kAddProcessSet.
    InlineInputs inputs;                            // Allreduce: what came with the reports.
    std::uint32_t slot = kNoSlot;
    bool as_slot_says = true;         // Every report so far was by slot: nothing changed.
    std::vector<GroupOfSome> groups;  // Where ranks disagree about it.
    Status error;
    TimePoint since;
    bool warned = false;
    bool ready = false;  // Complete and queued, or waiting for its group.
    std::uint64_t group = 0;
  };
  struct Slot {
    Signature common;
    std::vector<std::int64_t> per_member;
    bool is_stale = false;  // Its process set was removed; a full request gives it a new meaning.
  };
  struct GroupState {
    std::uint64_t number = 0;
    std::vector<Pending*> complete;
    Status error;
  };
  // What ranks disagreed about. The rest of the group can only fail.
  struct BrokenGroup {
    Status error;
    std::size_t ranks = 0;  // That ask for it.
    std::size_t left = 0;   // Its operations that have not failed yet.
  };
  using BrokenGroups = std::unordered_map<std::string, BrokenGroup>;
  // One bucket runs while the next one, already announced, waits behind it: the announcement's way
  // to the other ranks is hidden, and still most of a burst is free to gather in large buckets.
  static constexpr std::size_t kBucketsPerLane = 2;
  // What this rank sees of a lane where it is a member: the buckets under way, the running one
  // first.
  struct Lane {
    std::size_t outstanding = 0;
    std::array<std::uint64_t, kBucketsPerLane> bytes{};  // 0: not all-reduces that fuse.
    TimePoint since;                                     // The first one has run since then.
  };
  // What one process set has ready, and how busy its lanes are.
  struct Queue {
    std::deque<Pending*> ready;
    std::vector<Pending*> held;  // Ready, too, but not before the next cycle.
    std::vector<Lane> lanes;     // Where this rank is a member.
    std::size_t next_lane = 0;   // Where it is not.
    CostLine cost;               // What all-reduces cost, as this rank sees it.
  };

  using Ranks = std::span<const std::int32_t>;
  Status on_request(Ranks ranks,
                    const Request& request,
                    std::span<const InlineInput> inputs,
                    TimePoint now);
  Status on_ready_slot(Ranks ranks,
                       std::uint32_t slot,
                       std::span<const InlineInput> inputs,
                       TimePoint now);
  /// Takes the inputs of ranks whose reports were counted.
  static Status take_inputs(Pending& pending,
                            Ranks ranks,
                            const Signature& signature,
                            std::span<const InlineInput> inputs);
  /// Announces the result of what has all inputs. False: it is to be run.
  bool announce_result(Pending& pending);
  void on_join(int rank);
  void on_leave(int rank);
  Result<Pending*> pending_for(int rank, const Signature& signature, TimePoint now);
  Pending& new_pending();
  Result<std::size_t> count_in(Pending& pending, int rank);
  /// Finds the other end of a transfer that one rank has asked for, where an open receive is one
  /// of the two. Returns what both have now asked for: the send, or `pending` while it waits.
  Result<Pending*> meet(Pending& pending);
  static bool may_meet(const Pending& send, const Pending& receive);
  void complete_if_all_reported(Pending& pending, int last_rank);
  bool is_complete(const Pending& pending) const;
  std::vector<std::int32_t> missing(const Pending& pending) const;
  bool lacks_joined(const Pending& pending) const;
  /// Whether others may be kept waiting by who has not asked for it.
  bool is_timed(const Pending& pending) const;
  void complete(Pending& pending);
  void complete_group_member(Pending& pending);
  /// To be called before `ranks` of one report are counted.
  static void note_group(Pending& pending, const Signature& signature, std::size_t ranks);
  void break_groups(const Pending& pending);
  void count_broken(BrokenGroups::iterator broken);
  bool is_rest_of_group(const Pending& pending) const;
  void finish(Pending& pending);
  void announce_now(Pending& pending);
  void announce_failure(const Pending& pending, const Status& error);
  /// Whether this rank takes part, and so learns when it is done.
  bool is_seen(const Pending& pending) const;
  /// The lane for what is ready in `queue`; nothing: all are busy, or it is too early.
  std::optional<std::uint32_t> free_lane(Queue& queue, TimePoint now);
  /// When the bucket behind the one that runs on `lane` is to be closed.
  TimePoint close_time(const Queue& queue, const Lane& lane) const;
  /// Whether all that is ready could have company in its bucket.
  bool has_room(const Queue& queue) const;
  void announce_bucket(std::uint32_t process_set, Queue& queue, std::uint32_t lane, TimePoint now);
  AnnouncedTensor announce_tensor(Pending& pending);
  std::uint32_t slot_for(const Pending& pending);
  Slot& slot_at(std::uint32_t number) { return slots_[number - options_.first_slot]; }
  static bool fuses(const Signature& signature);
  FusionWish fusion_of(const Signature& signature) const;
  // What the tensors of one bucket have in common: they compute the same and wish the same of
  // fusion.
  struct FuseTraits {
    static FuseTraits of(const Signature& signature, const FusionWish& fusion);
    auto operator<=>(const FuseTraits&) const = default;

    DataType dtype;
    MemoryKind memory;
    ReduceOp reduce_op;
    FusionRule rule;
    std::uint8_t compressor;  // 0: none.
    bool fp16;
    bool two_bits;
    bool exact;
    std::uint32_t warmup_steps;
    std::uint64_t limit_bytes;
    std::uint64_t prescale;  // Bits of a number, so that any two can be told apart; and below.
    std::uint64_t postscale;
    std::uint64_t ratio;
    std::uint64_t momentum;
  };
  std::uint64_t fuse_key(const Signature& signature);
  void erase(Pending& pending);

  SequencerOptions options_;
  ProcessSetTable process_sets_;
  using PendingByKey = std::unordered_map<std::string, std::unique_ptr<Pending>>;
  PendingByKey pending_;
  std::vector<PendingByKey::node_type> spare_;  // What was erased, to be used again.
  std::string key_;                             // The one that was last looked for.
  std::vector<Pending*> unmet_;  // Sends to mailboxes, and open receives, in their order.
  std::unordered_map<std::string, GroupState> groups_;
  BrokenGroups broken_groups_;
  std::map<std::uint32_t, Queue> queues_;
  std::vector<Slot> slots_;
  std::unordered_map<std::string, std::uint32_t> slot_by_key_;
  std::map<FuseTraits, std::uint64_t> fuse_keys_;
  std::vector<FusionCandidate> candidates_;  // For the bucket that is being made.
  std::vector<Command> commands_;
  std::vector<std::uint64_t> last_asked_;  // By rank.
  SlowRanks slow_ranks_;
  std::vector<std::uint8_t> joined_;
  int joined_count_ = 0;
  std::int32_t last_joined_ = -1;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t next_group_ = 1;
  std::size_t held_count_ = 0;
  TimePoint next_cycle_{};
  TimePoint next_close_ = TimePoint::max();  // When a bucket that waits for others closes.
  bool shut_down_ = false;
};

}  // namespace lightcc
