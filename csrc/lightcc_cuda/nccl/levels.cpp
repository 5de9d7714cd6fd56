#include "lightcc_cuda/nccl/levels.hpp"

#include <optional>
#include <utility>
#include <vector>

#include "lightcc/base/clock.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/device_end.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/engine/partial_group.hpp"

#include "lightcc_cuda/nccl/group.hpp"

namespace lightcc::cuda {
namespace {

/// The steps of the operation that is being planned, and which of them wait for which.
class LevelPlan {
 public:
  explicit LevelPlan(NcclComms& comms) : comms_(comms) {}
  LevelPlan(const LevelPlan&) = delete;
  LevelPlan& operator=(const LevelPlan&) = delete;
  ~LevelPlan() { comms_.collect(nullptr); }

  void begin() {
    steps_.clear();
    crossed_.clear();
    gathered_ = 0;
    comms_.collect(&steps_);
  }
  std::vector<NcclStep> end() {
    comms_.collect(nullptr);
    return std::move(steps_);
  }

  /// Steps that are planned so far.
  std::size_t count() const { return steps_.size(); }

  // Each is about the steps that were planned last, of which kernels that reduce need several.

  void scatters() { scattered_ = last(); }
  void crosses(std::size_t first) {
    for (std::size_t step = first; step < steps_.size(); ++step) {
      steps_[step].is_aside = true;
    }
    make_wait_for(first, scattered_);
    crossed_.push_back(last());
  }
  void gathers() { make_wait_for(last(), crossed_.at(gathered_++)); }

 private:
  std::size_t last() const { return steps_.size() - 1; }
  void make_wait_for(std::size_t step, std::size_t earlier) {
    steps_[step].after = earlier;
    steps_[earlier].is_awaited = true;
  }

  NcclComms& comms_;
  std::vector<NcclStep> steps_;
  std::size_t scattered_ = 0;         // The last step that scatters.
  std::vector<std::size_t> crossed_;  // The steps between blocks.
  std::size_t gathered_ = 0;          // How many chunks are gathered.
};

/// The first and the third stage.
class BlockLevel final : public PartialGroup {
 public:
  BlockLevel(std::unique_ptr<Group> nccl, std::shared_ptr<LevelPlan> plan)
      : PartialGroup("a block runs the halves of an all-reduce alone"),
        nccl_(std::move(nccl)),
        plan_(std::move(plan)) {}

  int rank() const override { return nccl_->rank(); }
  int size() const override { return nccl_->size(); }

  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    auto work = nccl_->reduce_scatter_bucket(std::move(tensors), std::move(counts), reduction);
    plan_->scatters();
    return work;
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    auto work = nccl_->allgather_bucket(std::move(tensors), std::move(counts), dtype);
    plan_->gathers();
    return work;
  }

 private:
  std::unique_ptr<Group> nccl_;
  std::shared_ptr<LevelPlan> plan_;
};

/// The second stage.
class AcrossLevel final : public PartialGroup {
 public:
  AcrossLevel(std::unique_ptr<Group> nccl, std::shared_ptr<LevelPlan> plan)
      : PartialGroup("between blocks there are all-reduces alone"),
        nccl_(std::move(nccl)),
        plan_(std::move(plan)) {}

  int rank() const override { return nccl_->rank(); }
  int size() const override { return nccl_->size(); }

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                  const Reduction& reduction) override {
    const std::size_t first = plan_->count();
    auto work = nccl_->allreduce(std::move(tensors), reduction);
    plan_->crosses(first);
    return work;
  }

 private:
  std::unique_ptr<Group> nccl_;
  std::shared_ptr<LevelPlan> plan_;
};

/// An operation, and what was planned, which has memory that it uses.
class LevelsWork final : public Work {
 public:
  LevelsWork(std::unique_ptr<Work> planned, std::unique_ptr<Work> work)
      : planned_(std::move(planned)), work_(std::move(work)) {}

  Result<Progress> advance() override { return work_->advance(); }
  std::shared_ptr<DeviceEnd> device_end() const override { return work_->device_end(); }
  std::optional<TimePoint> device_begin() const override { return work_->device_begin(); }

 private:
  std::unique_ptr<Work> planned_;
  std::unique_ptr<Work> work_;  // It goes first.
};

/// `planned_` runs on the two levels, whose operations are collected here.
class NcclLevels final : public Group {
 public:
  NcclLevels(NcclComms& comms,
             std::unique_ptr<Group> flat,
             std::shared_ptr<GridState> state,
             std::shared_ptr<LevelPlan> plan)
      : comms_(comms),
        flat_(*flat),
        planned_(make_grid_group(std::move(flat), std::move(state))),
        plan_(std::move(plan)) {}

  int rank() const override { return flat_.rank(); }
  int size() const override { return flat_.size(); }

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                  const Reduction& reduction) override {
    const auto members = static_cast<std::size_t>(size());
    if (reducer_of(reduction, members, comms_.kernels()) == Reducer::kNone) {
      return flat_.allreduce(std::move(tensors), reduction);
    }
    plan_->begin();
    std::unique_ptr<Work> planned = planned_->allreduce(std::move(tensors), reduction);
    Result<Progress> progress = Progress::kMoved;
    while (progress.ok() && *progress == Progress::kMoved) {
      progress = planned->advance();
    }
    std::vector<NcclStep> steps = plan_->end();
    if (!progress.ok()) {
      return std::make_unique<FailedWork>(progress.status());
    }
    if (*progress != Progress::kDone) {
      return std::make_unique<FailedWork>(
          Status(ErrorCode::kInternal, "an all-reduce on two levels waits while it is planned"));
    }
    if (steps.empty()) {
      return std::make_unique<DoneWork>();  // There are no elements.
    }
    std::string what = steps.size() == 1 ? steps.front().what : "all-reduce on two levels";
    return std::make_unique<LevelsWork>(std::move(planned),
                                        comms_.start(std::move(what), std::move(steps)));
  }
  Group& group_for(std::size_t bytes) override {
    return &planned_->group_for(bytes) == planned_.get() ? static_cast<Group&>(*this) : flat_;
  }

  std::unique_ptr<Work> reduce_scatter(const std::byte* in,
                                       std::byte* out,
                                       std::vector<std::size_t> counts,
                                       const Reduction& reduction) override {
    return flat_.reduce_scatter(in, out, std::move(counts), reduction);
  }
  std::unique_ptr<Work> reduce_scatter_bucket(std::vector<TensorSpan> tensors,
                                              std::vector<std::size_t> counts,
                                              const Reduction& reduction) override {
    return flat_.reduce_scatter_bucket(std::move(tensors), std::move(counts), reduction);
  }
  std::unique_ptr<Work> allgather_bucket(std::vector<TensorSpan> tensors,
                                         std::vector<std::size_t> counts,
                                         DataType dtype) override {
    return flat_.allgather_bucket(std::move(tensors), std::move(counts), dtype);
  }
  std::unique_ptr<Work> allgather(const std::byte* in,
                                  std::byte* out,
                                  std::vector<std::size_t> bytes) override {
    return flat_.allgather(in, out, std::move(bytes));
  }
  std::unique_ptr<Work> broadcast(std::byte* data, std::size_t bytes, int root) override {
    return flat_.broadcast(data, bytes, root);
  }
  std::unique_ptr<Work> alltoall(const std::byte* in,
                                 std::vector<std::size_t> send_bytes,
                                 std::byte* out,
                                 std::vector<std::size_t> recv_bytes) override {
    return flat_.alltoall(in, std::move(send_bytes), out, std::move(recv_bytes));
  }
  std::unique_ptr<Work> send(const std::byte* in, std::size_t bytes, int peer) override {
    return flat_.send(in, bytes, peer);
  }
  std::unique_ptr<Work> recv(std::byte* out, std::size_t bytes, int peer) override {
    return flat_.recv(out, bytes, peer);
  }
  std::unique_ptr<Work> barrier() override { return flat_.barrier(); }

 private:
  NcclComms& comms_;
  Group& flat_;  // Of what is planned.
  std::unique_ptr<Group> planned_;
  std::shared_ptr<LevelPlan> plan_;
};

}  // namespace

std::unique_ptr<Group> make_nccl_levels(NcclComms& comms,
                                        std::unique_ptr<Group> flat,
                                        const LevelComms& of,
                                        const GridPosition& position,
                                        GridGroupOptions options) {
  const auto plan = std::make_shared<LevelPlan>(comms);
  const auto level =
      [&comms](const std::shared_ptr<NcclComm>& comm, std::size_t rank, std::size_t size) {
        return make_nccl_group(comms, comm, static_cast<int>(rank), static_cast<int>(size));
      };
  GridLevels levels;
  levels.intra =
      std::make_unique<BlockLevel>(level(of.block, position.member, position.members), plan);
  levels.inter.push_back(
      std::make_unique<AcrossLevel>(level(of.across, position.block, position.blocks), plan));
  options.is_host_memory = false;
  return std::make_unique<NcclLevels>(
      comms, std::move(flat), make_grid_state(std::move(levels), std::move(options)), plan);
}

}  // namespace lightcc::cuda
