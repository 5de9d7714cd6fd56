#include "control_story.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "control_world.hpp"

namespace lightcc::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

enum class Fault : std::uint8_t {
  kNone,
  kDeathOfMember,
  kDeathOfLeader,
  kDeathOfRoot,
  kLongStop,
  kShortStop,
  kCut,
  kRootHostRestart,
  kLeave,
  kLeaveAndDeath,
};
constexpr int kFaultCount = 10;
constexpr const char* kFaultNames[] = {"no fault",
                                       "a member dies",
                                       "a leader dies",
                                       "rank 0 dies",
                                       "a rank stops",
                                       "a rank stops for a moment",
                                       "a link is cut",
                                       "rank 0's host restarts",
                                       "ranks leave",
                                       "a rank leaves, another dies"};

/// One operation of every step, in one process set.
struct Planned {
  Signature signature;
  std::size_t set = 0;
  bool is_automatic = false;  // Has another name in every step.
  int mismatch_at = -1;       // This rank's shape differs, in the last step.
};

class Story {
 public:
  Story(std::uint64_t seed, Sabotage sabotage) : rng_(seed ^ 0x5eed), sabotage_(sabotage) {
    draw_hosts(seed);
    draw_plan(seed);
    world_ = std::make_unique<ControlWorld>(plan_, rng_());
    draw_operations();
    progress_.resize(static_cast<std::size_t>(size_));
  }

  StoryResult play() {
    world_->on_complete =
        [this](int rank, OperationToken token, const Status& status, std::int32_t value) {
          on_complete(rank, token, status, value);
        };
    world_->on_end = [this](const EndWorld& end) {
      first_blamed_ = first_blamed_ < 0 && !end.is_in_order ? end.status.rank() : first_blamed_;
    };
    for (int rank = 0; rank < size_; ++rank) {
      begin(rank);
    }
    if (fault_ != Fault::kNone) {
      fault_at_ = TimePoint{} + Duration(static_cast<std::int64_t>(rng_.below(fault_window())));
      world_->at(fault_at_, [this] { strike(); });
    }
    // Whoever is lost is found after the peer timeout, and told of in a few heartbeats.
    deadline_ = fault_at_ + 4 * plan_.peer_timeout + std::chrono::seconds(4);
    world_->run(deadline_);
    return judge();
  }

 private:
  void draw_hosts(std::uint64_t seed) {
    const std::uint64_t kind = rng_.below(100);
    if (seed % 1250 == 7) {
      size_ = static_cast<int>(1000 + rng_.below(9001));
    } else if (kind < 5) {
      size_ = 1;
    } else if (kind < 70) {
      size_ = static_cast<int>(2 + rng_.below(11));
    } else {
      size_ = static_cast<int>(2 + rng_.below(63));
    }
    std::vector<int> ranks(static_cast<std::size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    if (rng_.below(4) == 0) {
      std::shuffle(ranks.begin() + 1, ranks.end(), rng_);  // Rank 0 leads the first host anyway.
    }
    const std::uint64_t maximum = size_ > 1000 ? 16 : 1 + rng_.below(12);
    for (std::size_t first = 0; first < ranks.size();) {
      const std::size_t count =
          std::min<std::size_t>(1 + rng_.below(maximum), ranks.size() - first);
      std::vector<int> host(ranks.begin() + static_cast<std::ptrdiff_t>(first),
                            ranks.begin() + static_cast<std::ptrdiff_t>(first + count));
      std::ranges::sort(host);
      plan_.hosts.push_back(std::move(host));
      first += count;
    }
    std::ranges::sort(plan_.hosts, {}, [](const auto& host) { return host.front(); });
  }

  void draw_plan(std::uint64_t seed) {
    fault_ = static_cast<Fault>(rng_.below(kFaultCount));
    if (size_ == 1 || sabotage_ == Sabotage::kLoseFrame || sabotage_ == Sabotage::kSwapFrames) {
      fault_ = Fault::kNone;
    }
    if (sabotage_ == Sabotage::kBlameWrongly && size_ > 1) {
      fault_ = Fault::kDeathOfMember;
    }
    if (plan_.hosts.size() == 1 && (fault_ == Fault::kCut || fault_ == Fault::kRootHostRestart)) {
      fault_ = Fault::kDeathOfMember;
    }
    plan_.peer_timeout = milliseconds(800 + 400 * static_cast<int>(rng_.below(4)));
    plan_.slowest_control = rng_.below(3) == 0 ? milliseconds(40) : Duration::zero();
    plan_.sequencer.stall_check = false;
    plan_.sequencer.num_lanes = 1 + static_cast<int>(rng_.below(3));
    plan_.sequencer.slot_capacity = rng_.below(5) == 0 ? 3 : 1024;
    plan_.sequencer.fusion_threshold_bytes = 64U << rng_.below(8);
    if (seed % 3 == 0) {  // The next bucket waits for company, which has room.
      plan_.shortest_bucket = milliseconds(4);
      plan_.sequencer.fusion_threshold_bytes = std::uint64_t{1} << 20;
      plan_.sequencer.num_lanes = 1;
    }
    if (rng_.below(6) == 0) {
      plan_.sequencer.fusion = FusionRule::kHorovod;
    }
    plan_.lost_frame =
        sabotage_ == Sabotage::kLoseFrame ? static_cast<std::int64_t>(rng_.below(6)) : -1;
    plan_.swaps_frames = sabotage_ == Sabotage::kSwapFrames;
    // Every second story, all-reduces of up to so many bytes; larger ones are run.
    plan_.max_inline_bytes = seed % 2 == 0 ? 160 : 0;
    plan_.spoils_inputs = sabotage_ == Sabotage::kSpoilInput;
    plan_.hides_waiting = sabotage_ == Sabotage::kHideWaiting;
    plan_.blames_wrongly = sabotage_ == Sabotage::kBlameWrongly;
  }

  void draw_operations() {
    const bool is_large = size_ > 1000;
    steps_ = is_large ? 2 : 1 + static_cast<int>(rng_.below(4));
    is_sparse_ = size_ > 8 && !is_large && rng_.below(4) == 0;
    const std::size_t set_count = is_large || size_ < 2 ? 0 : rng_.below(3) + (is_sparse_ ? 1 : 0);
    members_.emplace_back();
    for (int rank = 0; rank < size_; ++rank) {
      members_[0].push_back(rank);
    }
    for (std::size_t i = 0; i < set_count; ++i) {
      const auto& host = plan_.hosts[rng_.below(plan_.hosts.size())];
      const auto& among = rng_.below(2) == 0 ? host : members_[0];
      std::vector<std::int32_t> ranks;
      for (const int rank : among) {
        if (rng_.below(is_sparse_ ? static_cast<std::uint64_t>(size_) : 2) < (is_sparse_ ? 3 : 1)) {
          ranks.push_back(rank);
        }
      }
      if (!ranks.empty()) {
        members_.push_back(std::move(ranks));
      }
    }
    joins_ = fault_ == Fault::kNone && size_ > 1 && !is_large && rng_.below(4) == 0;
    const bool is_slow = plan_.shortest_bucket > Duration::zero();
    const std::size_t count = is_large ? 1 + rng_.below(3) : 1 + rng_.below(is_slow ? 20 : 7);
    for (std::size_t i = 0; i < count; ++i) {
      Planned planned;
      planned.set = rng_.below(members_.size());
      if (is_sparse_ && members_.size() > 1) {
        planned.set = 1 + rng_.below(members_.size() - 1);
      }
      planned.is_automatic = !joins_ && rng_.below(6) == 0;
      Signature& s = planned.signature;
      s.name = (planned.is_automatic ? "allreduce.noname." : "gradient.") + std::to_string(i);
      s.shape = {static_cast<std::int64_t>(1 + rng_.below(40)), 2};
      if (!joins_) {
        constexpr OpType kOps[] = {OpType::kAllreduce,
                                   OpType::kAllreduce,
                                   OpType::kAllreduce,
                                   OpType::kAllgather,
                                   OpType::kBroadcast,
                                   OpType::kBarrier,
                                   OpType::kReducescatter};
        // Nothing waits for company while an operation of another kind is behind it.
        s.op = kOps[rng_.below(is_slow && i % 8 != 7 ? 1 : std::size(kOps))];
        if (s.op == OpType::kBroadcast) {
          const auto& members = members_[planned.set];
          s.root_or_peer = members[rng_.below(members.size())];
        }
        if (s.op == OpType::kBarrier) {
          s.shape.clear();
        }
        if (s.op == OpType::kAllreduce && rng_.below(10) == 0 && members_[planned.set].size() > 1) {
          const auto& members = members_[planned.set];
          planned.mismatch_at = members[rng_.below(members.size())];
        }
      }
      planned_.push_back(std::move(planned));
    }
    if (planned_.size() > 2 && rng_.below(5) == 0) {  // An all-or-nothing group.
      for (std::size_t i = 0; i < 2 && !is_sparse_; ++i) {
        planned_[i].signature.op = OpType::kAllreduce;
        planned_[i].signature.root_or_peer = -1;
        planned_[i].signature.shape = {3, 2};
        planned_[i].set = 0;
        planned_[i].mismatch_at = -1;
        planned_[i].signature.group = "group";
        planned_[i].signature.group_size = 2;
      }
    }
  }

  // --- What each rank does
  // ------------------------------------------------------------------------

  struct Progress {
    int step = -1;  // -1: process sets are being added.
    std::size_t open = 0;
    bool has_joined = false;
    bool is_done = false;
    std::vector<std::uint32_t> set_ids = {0};
  };
  struct Asked {
    int rank = 0;
    std::size_t planned = 0;
    bool expects_mismatch = false;
  };

  Progress& progress(int rank) { return progress_[static_cast<std::size_t>(rank)]; }

  void ask(int rank, Request request, Asked asked) {
    asked_.push_back(asked);
    ++progress(rank).open;
    // One in 32 is not alone when it is asked for, so that its operation is run.
    world_->submit(rank, request, asked_.size(), (asked_.size() * 2654435761U >> 7) % 32 != 0);
  }

  void begin(int rank) {
    if (members_.size() == 1) {
      next_step(rank);
      return;
    }
    add_set(rank, 1);
  }

  void add_set(int rank, std::size_t set) {
    Request request;
    request.signature.op = OpType::kAddProcessSet;
    request.signature.name = "set." + std::to_string(set);
    request.ranks = members_[set];
    ask(rank, std::move(request), {rank, 0, false});
  }

  void next_step(int rank) {
    Progress& p = progress(rank);
    ++p.step;
    // The last rank never joins early: somebody must have the tensors.
    if (joins_ && rank % 3 == 1 && p.step > 0) {
      p.step = steps_;
    }
    if (p.step >= steps_) {
      if (joins_ && !std::exchange(p.has_joined, true)) {
        Request request;
        request.signature.op = OpType::kJoin;
        request.signature.name = kJoinName;
        ask(rank, std::move(request), {rank, 0, false});
      } else {
        p.is_done = true;
      }
      return;
    }
    std::vector<std::size_t> order(planned_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), rng_);
    ++p.open;  // Nothing is over before all has been asked for.
    Duration after{};
    for (const std::size_t i : order) {
      const auto& members = members_[planned_[i].set];
      if (std::ranges::binary_search(members, rank)) {
        ++p.open;
        after += Duration(static_cast<std::int64_t>(rng_.below(20'000)));
        world_->at(world_->now() + after,
                   [this, rank, i, step = p.step] { ask_when_running(rank, i, step); });
      }
    }
    --p.open;
    if (p.open == 0) {
      next_step(rank);
    }
  }

  // A stopped process asks for nothing; one that goes on does.
  void ask_when_running(int rank, std::size_t i, int step) {
    if (!world_->is_stopped(rank)) {
      --progress(rank).open;
      ask_planned(rank, i, step);
    } else if (rank != lost_) {
      world_->at(world_->now() + milliseconds(10),
                 [this, rank, i, step] { ask_when_running(rank, i, step); });
    }
  }

  void ask_planned(int rank, std::size_t i, int step) {
    const Planned& planned = planned_[i];
    Request request{planned.signature, {}, {}};
    Signature& s = request.signature;
    s.process_set = progress(rank).set_ids[planned.set];
    if (planned.is_automatic) {
      s.name += "." + std::to_string(step);
    }
    if (!s.group.empty()) {
      s.group += std::to_string(step);
    }
    if (s.op == OpType::kAllgather) {
      s.shape[0] = rank % 5 + 1;
    }
    const bool mismatches = planned.mismatch_at >= 0 && step == steps_ - 1;
    if (mismatches && rank == planned.mismatch_at) {
      s.shape[0] += 1;
    }
    ask(rank, std::move(request), {rank, i, mismatches});
  }

  void on_complete(int rank, OperationToken token, const Status& status, std::int32_t value) {
    const Asked& asked = asked_[token - 1];
    Progress& p = progress(rank);
    if (asked.rank != rank) {
      complain("rank " + std::to_string(rank) + " got another rank's completion");
    }
    if (status.ok() == asked.expects_mismatch) {
      complain("rank " + std::to_string(rank) + ": '" + planned_[asked.planned].signature.name +
               "' ended with: " + status.message());
    }
    --p.open;
    ++completed_;
    if (p.step < 0) {
      p.set_ids.push_back(static_cast<std::uint32_t>(value));
      if (p.set_ids.size() < members_.size()) {
        add_set(rank, p.set_ids.size());
      } else {
        next_step(rank);
      }
    } else if (p.open == 0) {
      next_step(rank);
    }
  }

  // --- What goes wrong
  // -----------------------------------------------------------------------------

  std::uint64_t fault_window() const {
    return 60'000ULL * static_cast<std::uint64_t>(steps_) * (1 + planned_.size());
  }

  int pick(bool leaders) {
    std::vector<int> ranks;
    for (int rank = 1; rank < size_; ++rank) {
      if (world_->is_leader(rank) == leaders) {
        ranks.push_back(rank);
      }
    }
    return ranks.empty() ? static_cast<int>(1 + rng_.below(static_cast<std::uint64_t>(size_ - 1)))
                         : ranks[rng_.below(ranks.size())];
  }

  int pick_anyone() {
    const auto& ranks = is_sparse_ && rng_.below(4) > 0 ? members_.back() : members_.front();
    return ranks[rng_.below(ranks.size())];
  }

  void strike() {
    const int anyone = pick_anyone();
    switch (fault_) {
      case Fault::kNone:
        return;
      case Fault::kDeathOfMember:
        return die(pick(false));
      case Fault::kDeathOfLeader:
        return die(pick(true));
      case Fault::kDeathOfRoot:
        return die(0);
      case Fault::kLongStop:
        guilty_ = {anyone};
        lost_ = anyone;
        world_->stop(anyone, TimePoint::max());
        return;
      case Fault::kShortStop:
        world_->stop(anyone, world_->now() + plan_.peer_timeout / 4);
        return;
      case Fault::kCut: {
        const int below = cut_below();
        guilty_ = {below, world_->parent_of(below)};
        world_->cut(below);
        return;
      }
      case Fault::kRootHostRestart:
        guilty_.insert(plan_.hosts[0].begin(), plan_.hosts[0].end());
        world_->restart_host(0);
        return;
      case Fault::kLeaveAndDeath:
        die(pick(rng_.below(2) == 0));
        [[fallthrough]];
      case Fault::kLeave:
        has_left_ = true;
        world_->leave(anyone);
        if (rng_.below(2) == 0) {
          world_->leave(static_cast<int>(rng_.below(static_cast<std::uint64_t>(size_))));
        }
        return;
    }
  }

  void die(int rank) {
    guilty_ = {rank};
    world_->kill(rank);
  }

  int cut_below() {
    std::vector<int> ranks;
    for (std::size_t host = 1; host < plan_.hosts.size(); ++host) {
      ranks.push_back(plan_.hosts[host].front());
    }
    return ranks[rng_.below(ranks.size())];
  }

  // --- What must hold
  // -------------------------------------------------------------------------------

  void complain(const std::string& what) {
    if (complaint_.empty()) {
      complaint_ = what;
    }
  }

  void judge_end(int rank, const EndWorld& end, StoryResult& result) {
    const std::string who = "rank " + std::to_string(rank);
    (end.is_in_order ? result.closed : result.failed_world) = true;
    if (end.is_in_order && !has_left_) {
      complain(who + " ended in order though nobody left");
    } else if (!end.is_in_order && fault_ == Fault::kLeaveAndDeath &&
               end.status.code() == ErrorCode::kTimeout && end.status.rank() < 0) {
      // What was under way needed the dead rank, and the world was closing: nobody is blamed.
    } else if (!end.is_in_order && !guilty_.contains(end.status.rank()) && !is_messenger(end)) {
      complain(who + " blames rank " + std::to_string(end.status.rank()) + ": " +
               end.status.message());
    }
  }

  // What vanishes without a word is silent at first. A rank that does not watch it knows
  // only who found that earlier and closed its connections, and may be the first to give up
  // waiting.
  bool is_messenger(const EndWorld& end) const {
    const int named = end.status.rank();
    const bool is_silent =
        fault_ == Fault::kRootHostRestart || fault_ == Fault::kLongStop || fault_ == Fault::kCut;
    return is_silent && named >= 0 && world_->end_of(named) != nullptr &&
           guilty_.contains(first_blamed_);
  }

  void judge_rank(int rank, StoryResult& result) {
    const std::string who = "rank " + std::to_string(rank);
    const bool expects_end =
        !guilty_.empty() && fault_ != Fault::kLongStop && fault_ != Fault::kCut;
    if (const EndWorld* end = world_->end_of(rank)) {
      judge_end(rank, *end, result);
    } else if (!progress(rank).is_done || world_->outstanding(rank) > 0) {
      complain(who + " still waits for " + std::to_string(world_->outstanding(rank)) +
               " operations, in step " + std::to_string(progress(rank).step) + " of " +
               std::to_string(steps_));
    } else if (has_left_ || expects_end) {
      complain(who + " was never told of the end");
    } else if (world_->control(rank).waiting_count() != 0) {
      complain(who + " has kept operations that are over");
    }
  }

  StoryResult judge() {
    StoryResult result;
    result.ranks = size_;
    for (int rank = 0; rank < size_; ++rank) {
      if (world_->is_alive(rank) && rank != lost_) {
        judge_rank(rank, result);
      }
    }
    const Sequencer* sequencer = world_->control(0).sequencer();
    if (sequencer != nullptr && !result.failed_world && !result.closed && guilty_.empty()) {
      if (sequencer->has_pending()) {
        complain("the sequencer still waits for reports");
      }
      for (int rank = 0; rank < size_; ++rank) {
        if (world_->control(rank).slot_count() != sequencer->slot_count()) {
          complain("rank " + std::to_string(rank) + " has " +
                   std::to_string(world_->control(rank).slot_count()) + " slots, the sequencer " +
                   std::to_string(sequencer->slot_count()));
        }
      }
    }
    if (!world_->violation().empty()) {
      complaint_ = world_->violation();
    }
    result.ok = complaint_.empty();
    result.why = complaint_;
    result.operations = completed_;
    result.inline_results = world_->inline_results();
    result.events = world_->events();
    result.summary = std::to_string(size_) + " ranks on " + std::to_string(plan_.hosts.size()) +
                     " hosts, " + std::to_string(planned_.size()) + " operations in " +
                     std::to_string(steps_) + " steps, " + std::to_string(members_.size()) +
                     " process sets" + (joins_ ? ", joins" : "") + "; " +
                     kFaultNames[static_cast<std::size_t>(fault_)];
    return result;
  }

  Rng rng_;
  Sabotage sabotage_;
  WorldPlan plan_;
  int size_ = 1;
  int steps_ = 1;
  bool joins_ = false;
  bool is_sparse_ = false;  // Few ranks ask for anything; the others only keep the tree together.
  Fault fault_ = Fault::kNone;
  std::vector<std::vector<std::int32_t>> members_;  // By set.
  std::vector<Planned> planned_;
  std::unique_ptr<ControlWorld> world_;
  std::vector<Progress> progress_;
  std::vector<Asked> asked_;
  TimePoint fault_at_{};
  TimePoint deadline_{};
  std::set<int> guilty_;
  int lost_ = -1;  // Stopped for good: nothing is asked of it.
  bool has_left_ = false;
  int first_blamed_ = -1;  // By the rank that knew first.
  std::uint64_t completed_ = 0;
  std::string complaint_;
};

}  // namespace

StoryResult play_story(std::uint64_t seed, Sabotage sabotage) {
  return Story(seed, sabotage).play();
}

}  // namespace lightcc::sim
