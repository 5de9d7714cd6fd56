// The control plane of one rank, as a machine: frames, ends of links and the time go in; frames,
// actions and the next deadline come out. It owns no descriptor, thread, socket or clock.
//
// Ranks form a tree. Reports of what a rank is ready for go up, to the sequencer on rank 0; its
// commands come down, in one order for all. Errors travel both ways.
//
// What only ranks of one host take part in does not cross the network: the host's leader has a
// sequencer for the process sets whose ranks are all on its host. Its commands and those of rank 0
// reach the ranks of the host in one order, that of the leader.
//
// The world ends in one of two ways: in good order (one rank leaves, rank 0 announces it, what was
// announced before still runs, the rest fails with kShutDown), or in error (the first rank to know
// tells its neighbours in the tree, who pass it on; everything fails with that error).
//
// Who is to blame: a rank that was seen to die, and the one that an error of the tree names. A
// connection that merely closes may be the consequence of a failure elsewhere. It is blamed only
// after better news had time to arrive; until then the rank is "suspecting" and only listens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/double_buffer.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/control/agreement.hpp"
#include "lightcc/control/control_tree.hpp"
#include "lightcc/control/process_set_table.hpp"
#include "lightcc/control/report_gathering.hpp"
#include "lightcc/control/sequencer.hpp"
#include "lightcc/control/silence.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// Name under which every rank asks to join; only one join is in flight.
inline constexpr const char* kJoinName = "join";

/// What the driver calls one of its operations; the machine only keeps it.
using OperationToken = std::uintptr_t;
inline constexpr OperationToken kNoOperation = 0;

/// Number of a link: a child's index, or the parent.
using LinkIndex = int;
inline constexpr LinkIndex kParentLink = -1;
inline constexpr LinkIndex kNoLink = -2;

struct ControlPeer {
  int rank = -1;
  bool is_remote = false;  ///< On another host: its frames are its signs of life.
};

struct ControlOptions {
  int rank = 0;
  std::optional<ControlPeer> parent;  ///< Absent on rank 0.
  std::vector<ControlPeer> children;
  std::vector<int> tree_parents;  ///< The parent of each rank; needed where there are children.
  std::vector<int> watched;       ///< Ranks of this host whose signs of life the driver tells.
  bool is_networked = false;      ///< Connections to other hosts may close as a consequence.
  Duration peer_timeout = std::chrono::seconds(30);
  std::size_t max_inline_bytes = 0;  ///< Limit of the inputs that go with a report; 0: none does.
  bool wakes_parent = true;  ///< Once it is late, so that rank 0 learns in time who asks for what.
  SequencerOptions sequencer;       ///< Rank 0's; a leader takes its own for those of its host.
  ProcessSetTable process_sets{0};  ///< Set 0: all ranks.
};

/// One frame that is to be sent: to the parent, all children, or both, but for one link.
struct OutgoingFrame {
  Frame frame;
  bool to_parent = false;
  bool to_children = false;
  LinkIndex except = kNoLink;
  bool is_urgent = false;    ///< The receiver must act on it even if it has nothing outstanding.
  LinkIndex only = kNoLink;  ///< If given, the frame goes to no other link.

  bool goes_to(LinkIndex link) const {
    return (link == kParentLink ? to_parent : to_children) && link != except &&
           (only == kNoLink || link == only);
  }
};

/// One tensor of a bucket, as this rank runs it.
struct MatchedTensor {
  std::shared_ptr<const AgreedTensor> agreed;  ///< Shared with the slot, where it has one.
  OperationToken operation = kNoOperation;     ///< None: this rank has joined, it gives zeros.
};

/// What the driver is to do, in this order.
struct RunBucket {
  std::uint32_t process_set = 0;
  std::uint32_t lane = 0;
  std::vector<MatchedTensor> tensors;
  std::uint64_t sequence = 0;  ///< Number of the announcement.
};
struct CompleteOperation {
  OperationToken operation = kNoOperation;
  Status status;
  std::int32_t value = 0;
};
/// The operation, an open receive, gets its message from `source`, and is called `name` now.
struct NameReceive {
  OperationToken operation = kNoOperation;
  std::int32_t source = -1;
  std::string name;
};
/// An all-reduce is over whose inputs went with the reports (control/inline_allreduce.hpp).
struct TakeResult {
  std::uint32_t process_set = 0;
  MatchedTensor tensor;
  Bytes result;
};
/// `waiting` completes when the set can be used.
struct MakeProcessSet {
  std::uint32_t id = 0;
  std::vector<std::int32_t> ranks;
  OperationToken waiting = kNoOperation;
};
struct DropProcessSet {
  std::uint32_t id = 0;
};
/// The last action of all. Buckets that still run are dropped; what is outstanding, and what comes
/// later, fails with `status`.
struct EndWorld {
  Status status;
  bool is_in_order = false;  ///< A rank left; nothing failed.
};
using ControlAction = std::variant<RunBucket,
                                   TakeResult,
                                   CompleteOperation,
                                   NameReceive,
                                   MakeProcessSet,
                                   DropProcessSet,
                                   EndWorld>;

/// Is told what becomes of tensors; a timeline records it.
class ControlObserver {
 public:
  ControlObserver() = default;
  ControlObserver(const ControlObserver&) = delete;
  ControlObserver& operator=(const ControlObserver&) = delete;
  virtual ~ControlObserver() = default;
  /// Rank `rank` is known to want a tensor: this rank, and on rank 0 any.
  virtual void ready(const Signature& tensor, std::uint32_t rank) = 0;
  /// All ranks want it, and this rank takes part.
  virtual void announced(const Signature& tensor, const Execute& execute) = 0;
  /// It is over, and nothing was run for it here.
  virtual void ended(std::uint32_t process_set, const std::string& name) = 0;
  /// This rank is about to announce what is complete.
  virtual void cycle() = 0;
};

/// Thread: one at a time.
class ControlPlane {
 public:
  ControlPlane(ControlOptions options, TimePoint now);

  // --- In ---
  /// This rank asks for `request`, which has been checked. `key`: its key_of(). Reported by the
  /// next advance(). `input`: what the operation reads, where it may go with the report.
  void submit(const Request& request,
              const std::string& key,
              OperationToken operation,
              std::span<const std::byte> input = {});
  /// This rank wants to end the world.
  void leave();
  void on_frame(LinkIndex link, Frame frame, TimePoint now);
  /// No frame will come from this link any more; all that came before were handed in.
  void on_link_closed(LinkIndex link, const Status& error, TimePoint now);
  /// A process was seen to die. What it said before was handed in.
  void on_death(const Status& death);
  /// The executor, a transport or the system failed.
  void on_trouble(const Status& error, TimePoint now);
  /// A rank of `watched` gave a sign of life.
  void heard_from(int rank, TimePoint now) { silence_.heard_from(rank, now); }
  /// This rank finished a bucket.
  void on_bucket_done(std::uint32_t process_set, std::uint32_t lane, TimePoint now);
  /// Ends the world in error from here.
  void fail(const Status& error);

  /// Whether advance() has anything to do before deadline().
  bool wants_advance() const { return wants_advance_; }
  /// Sends reports, announces. Call after the inputs above.
  void advance(TimePoint now);
  /// When tick() wants to be called, or advance() for what is held.
  TimePoint deadline() const;
  /// Ready tensors wait for a time before they are announced, or reports before they go up; or the
  /// parent is to be woken if it says nothing.
  bool has_held() const {
    return (sequencer_ != nullptr && sequencer_->has_held()) || gathering_.has_held() ||
           wake_at_ != TimePoint::max();
  }
  TimePoint next_tick() const { return next_tick_; }
  /// Signs of life and what has taken too long. `is_busy`: this rank has something outstanding;
  /// `is_host_busy`: another rank of this host has.
  void tick(TimePoint now, bool is_busy, bool is_host_busy);
  /// The driver runs no bucket and has sent every frame: a world that closes may end now.
  void on_quiet();

  /// Null: nobody. It outlives its use.
  void set_observer(ControlObserver* observer) { observer_ = observer; }

  // --- Out ---
  /// What is new since the last call; valid until the next one.
  std::vector<OutgoingFrame>& take_frames() { return frames_.take(); }
  std::vector<ControlAction>& take_actions() { return actions_.take(); }
  /// Lines for the log.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }
  /// On rank 0: ranks that have become slow since the last call, or are not slow any more.
  std::vector<SlowChange> take_slow_changes() {
    return sequencer() != nullptr ? sequencer_->take_slow_changes() : std::vector<SlowChange>();
  }
  bool has_output() const { return !frames_.empty() || !actions_.empty(); }

  bool is_over() const { return is_over_; }
  bool is_closing() const { return is_closing_; }
  /// Only listens: a connection closed, and better news may come.
  bool is_suspecting() const { return suspicion_.has_value(); }
  const ProcessSetTable& process_sets() const { return process_sets_; }
  /// Operations that this rank asked for and that were not announced yet. Slow; for tests.
  std::size_t waiting_count() const;
  /// Slots that rank 0 has given a meaning.
  std::size_t slot_count() const;
  /// Null beside rank 0, and after the end.
  const Sequencer* sequencer() const { return is_root() ? sequencer_.get() : nullptr; }

 private:
  struct LocalSlot {
    std::shared_ptr<const AgreedTensor> agreed;  // Never null.
    std::optional<Request> own;                  // What this rank last asked for under it.
    OperationToken waiting = kNoOperation;       // Reported by slot, not announced yet.
  };
  struct Waiting {
    Request request;
    OperationToken operation = kNoOperation;
  };

  bool is_root() const { return !options_.parent.has_value(); }
  /// Whether this rank decides for a process set in rank 0's place.
  bool decides_for(std::uint32_t process_set) const;
  // Up the tree.
  void send_reports(TimePoint now);
  Result<bool> take_for_host(const Report& report, TimePoint now);
  void wake_late_parent(TimePoint now);
  void gather(Report report, TimePoint now, std::vector<Report>& out);
  bool is_gathered(const Report& report) const;
  const std::vector<std::int32_t>& ranks_below(std::uint32_t leader, std::uint32_t process_set);
  void note_join(const Report& report);
  Status sequence(const Report& report, TimePoint now);
  Status sequence_all(std::span<const std::int32_t> ranks, const Report& report, TimePoint now);
  const Signature* signature_of(const Report& report) const;
  bool concerns_idle_parent(const Report& report) const;
  // Down the tree.
  void announce(TimePoint now);
  Status apply_all(std::vector<Command>& commands, bool of_host, TimePoint now);
  Status apply(const Command& command, TimePoint now);
  Status apply_execute(const Execute& execute);
  Status apply_match(const MatchReceive& match);
  Result<std::optional<MatchedTensor>> resolve(const AnnouncedTensor& announced,
                                               std::uint32_t process_set);
  Result<std::shared_ptr<const AgreedTensor>> agreed_tensor(const AnnouncedTensor& announced,
                                                            std::uint32_t process_set) const;
  /// `input` as it goes with this rank's report; nothing: it does not.
  std::vector<InlineInput> inline_input(const Signature& signature,
                                        std::span<const std::byte> input) const;
  Status take_result(const Execute& execute, MatchedTensor tensor);
  void fail_operations_of(std::uint32_t process_set);
  void remember(std::uint32_t slot,
                std::shared_ptr<const AgreedTensor> agreed,
                std::optional<Request> own);
  void forget_report(std::uint32_t process_set, const std::string& name);
  void tell_ended(std::uint32_t process_set, const std::string& name);
  void complete_by_name(std::uint32_t process_set,
                        const std::string& name,
                        const Status& status,
                        std::int32_t value);
  std::optional<Waiting> take_waiting(std::uint32_t process_set, const std::string& name);
  OperationToken take_operation(std::uint32_t process_set, const std::string& name);
  // Ends.
  void broadcast(Frame frame, bool is_urgent, LinkIndex except);
  const ControlPeer& peer(LinkIndex link) const;
  Status own_words(const Status& error) const;
  void beat(bool is_host_busy);
  void suspect(const Status& error, TimePoint now, Duration patience);
  void end_if_shut_down(const Frame& frame);
  void end_in_error(const Status& error, LinkIndex except);

  ControlOptions options_;
  ControlObserver* observer_ = nullptr;
  Silence silence_;
  ProcessSetTable process_sets_;
  ControlTree tree_;
  ReportGathering gathering_;             // Where ranks are below, and rank 0 is above.
  std::string key_;                       // Key of the report that is gathered.
  std::unique_ptr<Sequencer> sequencer_;  // On rank 0, and at the leader of each other host.
  std::vector<std::int32_t> host_ranks_;  // At such a leader: the ranks of its host.
  std::unordered_map<std::uint32_t, LocalSlot> slots_;
  std::unordered_map<std::string, std::uint32_t> slot_by_key_;
  std::unordered_map<std::string, Waiting> waiting_;  // What was reported in full.
  DoubleBuffer<Report> reports_;                      // To go up in one frame.
  DoubleBuffer<OutgoingFrame> frames_;
  DoubleBuffer<ControlAction> actions_;
  std::vector<std::string> warnings_;
  TimePoint next_tick_;
  TimePoint wake_at_ = TimePoint::max();  // The parent, unless it says something before.
  bool wants_advance_ = false;
  bool is_leaving_ = false;
  bool is_closing_ = false;
  std::int32_t closed_by_ = -1;
  TimePoint closing_deadline_;
  std::optional<Status> suspicion_;  // What ends the world unless there is better news in time.
  TimePoint suspected_at_;
  TimePoint update_deadline_;
  bool is_patient_ = false;  // News was given time to come.
  bool is_over_ = false;
};

}  // namespace lightcc
