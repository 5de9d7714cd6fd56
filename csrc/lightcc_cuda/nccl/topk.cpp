#include "lightcc_cuda/nccl/topk.hpp"

#include <span>
#include <utility>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/all_works.hpp"

namespace lightcc::cuda {
namespace {

/// Puts memory in the place of what a member that has joined does not have: its input is zeros, and
/// nobody wants its result.
Status fill_in(const NcclCalls& calls, std::vector<ExchangedStep>& steps) {
  const auto bytes_of = [](const ExchangedStep& one) {
    return one.step.shard->numel * element_size(one.step.shard->dtype);
  };
  const auto lacks = [](const ExchangedStep& one) {
    return one.step.input == nullptr || one.out == nullptr;
  };
  std::size_t bytes = 0;
  for (const ExchangedStep& one : steps) {
    bytes += lacks(one) ? bytes_of(one) : 0;
  }
  if (bytes == 0) {
    return {};
  }
  LIGHTCC_ASSIGN_OR_RETURN(std::byte * next, calls.zeros(bytes));
  for (ExchangedStep& one : steps) {
    if (lacks(one)) {
      one.step.input = one.step.input == nullptr ? next : one.step.input;
      one.out = one.out == nullptr ? next : one.out;
      next += bytes_of(one);
    }
  }
  return {};
}

Result<TopkSite*> site_of(const NcclCalls& calls) {
  if (calls.topk() == nullptr) {
    return make_error(ErrorCode::kInternal, "NCCL's thread has no kernels for top-k compression");
  }
  return calls.topk();
}

/// Compresses, and begins to gather.
Status gather(const NcclCalls& calls,
              TopkSite& topk,
              ExchangedTensors tensors,
              std::size_t members,
              std::size_t own) {
  LIGHTCC_RETURN_IF_ERROR(fill_in(calls, tensors.steps));
  LIGHTCC_ASSIGN_OR_RETURN(const ListBytes travel,
                           topk.begin_exchange(std::move(tensors), members, own, calls.stream()));
  return travel.bytes == 0 ? Status()
                           : calls.check(calls.nccl().all_gather(travel.own,
                                                                 travel.all,
                                                                 travel.bytes,
                                                                 kNcclUint8,
                                                                 calls.comm(),
                                                                 calls.stream()),
                                         "ncclAllGather");
}

/// Says what cannot be known of shards where it is dropped before its end.
class ExchangeWork final : public Work {
 public:
  /// `is_scattered`: other operations bring what is compressed.
  ExchangeWork(std::unique_ptr<Work> work,
               const NcclComms& comms,
               std::vector<ExchangedStep> steps,
               bool is_scattered)
      : work_(std::move(work)),
        comms_(comms),
        steps_(std::move(steps)),
        is_scattered_(is_scattered) {}
  ExchangeWork(const ExchangeWork&) = delete;
  ExchangeWork& operator=(const ExchangeWork&) = delete;
  ~ExchangeWork() override {
    work_.reset();
    if (is_done_) {
      return;
    }
    for (const ExchangedStep& one : steps_) {
      one.step.shard->is_lost = comms_.is_lost();
      one.step.shard->is_input_whole = !is_scattered_;
    }
  }

  Result<Progress> advance() override {
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, work_->advance());
    is_done_ = progress == Progress::kDone;
    return progress;
  }

 private:
  std::unique_ptr<Work> work_;
  const NcclComms& comms_;
  std::vector<ExchangedStep> steps_;
  bool is_scattered_;
  bool is_done_ = false;
};

class NcclTopk final : public DeviceTopk {
 public:
  NcclTopk(NcclComms& comms,
           TopkComms of,
           CudaTopkKernels& kernels,
           std::vector<std::int32_t> ranks,
           std::size_t own)
      : comms_(comms), of_(std::move(of)), kernels_(kernels), ranks_(std::move(ranks)), own_(own) {}

  TopkKernels& kernels() override { return kernels_; }
  bool takes(std::size_t elements) const override {
    return elements > 0 && elements <= kMaxTopkElements;
  }

  std::size_t max_tensors() const override { return kMaxTopkTensors; }

  Result<std::unique_ptr<Work>> prepare(std::span<const DeviceTopkStep> steps) override {
    return kernels_.prepare_exchange(steps);
  }
  Result<std::unique_ptr<Work>> start(std::span<const DeviceTopkStep> steps) override {
    ExchangedTensors tensors;
    LIGHTCC_ASSIGN_OR_RETURN(tensors.steps, kernels_.begin_exchange(steps));
    for (const DeviceTopkStep& step : steps) {
      tensors.is_void.push_back(step.is_void);
    }
    std::unique_ptr<Work> work;
    if (of_.block == nullptr) {
      work = run(tensors);
    } else {
      std::vector<std::unique_ptr<Work>> works;
      works.push_back(run_between_blocks(tensors));
      works.push_back(run_in_block());
      work = all_of(std::move(works));
    }
    return std::unique_ptr<Work>(std::make_unique<ExchangeWork>(
        std::move(work), comms_, std::move(tensors.steps), of_.block != nullptr));
  }

 private:
  std::unique_ptr<Work> run(const ExchangedTensors& tensors) const {
    return comms_.start(of_.lists,
                        "ncclAllGather",
                        [tensors, ranks = ranks_, own = own_](const NcclCalls& calls) -> Status {
                          LIGHTCC_ASSIGN_OR_RETURN(TopkSite* const topk, site_of(calls));
                          calls.when_taken([topk, stream = calls.stream()] {
                            const Status checked = topk->check_exchange(stream);
                            return checked.ok() ? topk->merge_exchange(stream) : checked;
                          });
                          calls.when_done([topk, ranks] { return topk->end_exchange(ranks); });
                          return gather(calls, *topk, tensors, ranks.size(), own);
                        });
  }

  // The same in two operations, on one stream.

  std::unique_ptr<Work> run_between_blocks(const ExchangedTensors& tensors) const {
    return comms_.start(
        of_.lists,
        "ncclAllGather",
        [tensors, members = ranks_.size(), own = own_](const NcclCalls& calls) -> Status {
          LIGHTCC_ASSIGN_OR_RETURN(TopkSite* const topk, site_of(calls));
          calls.when_taken(
              [topk, stream = calls.stream()] { return topk->check_exchange(stream); });
          return gather(calls, *topk, tensors, members, own);
        });
  }
  std::unique_ptr<Work> run_in_block() const {
    return comms_.start(
        of_.block, "ncclAllReduce", [ranks = ranks_](const NcclCalls& calls) -> Status {
          LIGHTCC_ASSIGN_OR_RETURN(TopkSite* const topk, site_of(calls));
          calls.when_taken(
              [topk, stream = calls.stream()] { return topk->merge_exchange(stream); });
          calls.when_done([topk, ranks] { return topk->end_exchange(ranks); });
          LIGHTCC_ASSIGN_OR_RETURN(const VoidWords words, topk->words_to_agree_on());
          return calls.check(calls.nccl().all_reduce(words.first,
                                                     words.first,
                                                     words.count,
                                                     kNcclInt32,
                                                     kNcclMax,
                                                     calls.comm(),
                                                     calls.stream()),
                             "ncclAllReduce");
        });
  }

  NcclComms& comms_;
  TopkComms of_;
  CudaTopkKernels& kernels_;
  std::vector<std::int32_t> ranks_;
  std::size_t own_;
};

}  // namespace

std::unique_ptr<DeviceTopk> make_nccl_topk(NcclComms& comms,
                                           TopkComms of,
                                           CudaTopkKernels& kernels,
                                           std::vector<std::int32_t> ranks,
                                           std::size_t own) {
  return std::make_unique<NcclTopk>(comms, std::move(of), kernels, std::move(ranks), own);
}

}  // namespace lightcc::cuda
