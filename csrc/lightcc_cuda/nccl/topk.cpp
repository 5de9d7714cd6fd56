#include "lightcc_cuda/nccl/topk.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/sequence.hpp"

namespace lightcc::cuda {
namespace {

/// Puts memory in the place of what a member that has joined does not have: its input is zeros, and
/// nobody wants its result.
Status fill_in(const NcclCalls& calls, std::span<ExchangedStep> steps) {
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

Status run_steps(const NcclCalls& calls,
                 std::vector<ExchangedStep> steps,
                 const std::vector<std::int32_t>& ranks,
                 std::size_t own) {
  TopkSite* const topk = calls.topk();
  if (topk == nullptr) {
    return {ErrorCode::kInternal, "NCCL's thread has no kernels for top-k compression"};
  }
  LIGHTCC_RETURN_IF_ERROR(fill_in(calls, steps));
  ListBytes travel;
  LIGHTCC_ASSIGN_OR_RETURN(
      const std::shared_ptr<TopkSite::Exchange> exchange,
      topk->begin_exchange(std::move(steps), ranks.size(), own, travel, calls.stream()));
  calls.when_taken([topk, exchange, stream = calls.stream()] {
    return topk->merge_exchange(*exchange, stream);
  });
  calls.when_done([exchange, ranks] { return TopkSite::end_exchange(*exchange, ranks); });
  return calls.check(
      calls.nccl().all_gather(
          travel.own, travel.all, travel.bytes, kNcclUint8, calls.comm(), calls.stream()),
      "ncclAllGather");
}

class NcclTopk final : public DeviceTopk {
 public:
  NcclTopk(NcclComms& comms,
           std::shared_ptr<NcclComm> comm,
           CudaTopkKernels& kernels,
           std::vector<std::int32_t> ranks,
           std::size_t own)
      : comms_(comms),
        comm_(std::move(comm)),
        kernels_(kernels),
        ranks_(std::move(ranks)),
        own_(own) {}

  TopkKernels& kernels() override { return kernels_; }
  bool takes(std::size_t elements) const override {
    return elements > 0 && elements <= kMaxTopkElements;
  }

  Result<std::unique_ptr<Work>> start(std::vector<DeviceTopkStep> steps) override {
    LIGHTCC_ASSIGN_OR_RETURN(const std::vector<ExchangedStep> begun,
                             kernels_.begin_exchange(steps));
    std::vector<Sequence::Start> starts;
    starts.emplace_back([this, begun] { return kernels_.prepare(begun); });
    for (std::size_t first = 0; first < begun.size(); first += kMaxTopkTensors) {
      const std::size_t end = std::min<std::size_t>(first + kMaxTopkTensors, begun.size());
      starts.emplace_back([this,
                           table = std::vector<ExchangedStep>(
                               begun.begin() + static_cast<std::ptrdiff_t>(first),
                               begun.begin() + static_cast<std::ptrdiff_t>(end))] {
        return comms_.start(
            comm_, "ncclAllGather", [table, ranks = ranks_, own = own_](const NcclCalls& calls) {
              return run_steps(calls, table, ranks, own);
            });
      });
    }
    return std::unique_ptr<Work>(std::make_unique<Sequence>(std::move(starts)));
  }

 private:
  NcclComms& comms_;
  std::shared_ptr<NcclComm> comm_;
  CudaTopkKernels& kernels_;
  std::vector<std::int32_t> ranks_;
  std::size_t own_;
};

}  // namespace

std::unique_ptr<DeviceTopk> make_nccl_topk(NcclComms& comms,
                                           std::shared_ptr<NcclComm> comm,
                                           CudaTopkKernels& kernels,
                                           std::vector<std::int32_t> ranks,
                                           std::size_t own) {
  return std::make_unique<NcclTopk>(comms, std::move(comm), kernels, std::move(ranks), own);
}

}  // namespace lightcc::cuda
