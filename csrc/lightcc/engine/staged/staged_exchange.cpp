#include "lightcc/engine/staged/staged_exchange.hpp"

#include <cstddef>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/collectives/sequence.hpp"
#include "lightcc/engine/partial_group.hpp"

namespace lightcc {
namespace {

/// What an exchange and its Works share.
struct ExchangeSite {
  std::shared_ptr<GridState> host;
  std::size_t index = 0;  // The inter group's.
  Staging* staging = nullptr;
  std::int32_t device = 0;
  Status broken;  // Why a Work did not come to its end.
};

/// The steps of an all-reduce, whose failure, or end before its time, breaks the exchange.
class ExchangeWork final : public Work {
 public:
  ExchangeWork(std::shared_ptr<ExchangeSite> site, std::vector<Sequence::Start> steps)
      : site_(std::move(site)), steps_(std::move(steps)) {}
  ExchangeWork(const ExchangeWork&) = delete;
  ExchangeWork& operator=(const ExchangeWork&) = delete;
  ~ExchangeWork() override {
    if (!is_done_ && site_->broken.ok()) {
      site_->broken = {ErrorCode::kShutDown, "an earlier operation of this group was abandoned"};
    }
  }

  Result<Progress> advance() override {
    Result<Progress> progress = steps_.advance();
    if (!progress.ok()) {
      site_->broken = progress.status();
    } else {
      is_done_ = *progress == Progress::kDone;
    }
    return progress;
  }

 private:
  std::shared_ptr<ExchangeSite> site_;
  Sequence steps_;
  bool is_done_ = false;
};

/// The all-reduce of what has come to the host.
std::unique_ptr<Work> reduce(const ExchangeSite& site,
                             const StagedBlock& block,
                             const Reduction& reduction) {
  GridState& host = *site.host;
  if (!host.status.ok()) {
    return std::make_unique<FailedWork>(host.status);
  }
  std::vector<TensorSpan> copies;
  copies.reserve(block.parts.size());
  for (const StagedPart& part : block.parts) {
    std::byte* const data = block.at(part);
    copies.push_back(
        {.in = data, .out = data, .count = part.bytes / element_size(reduction.dtype)});
  }
  return host.levels.inter[site.index]->allreduce(std::move(copies), reduction);
}

class StagedExchange final : public PartialGroup {
 public:
  explicit StagedExchange(ExchangeSite site)
      : PartialGroup("a staged exchange runs all-reduces that have an input and an output"),
        rank_(site.host->levels.inter[site.index]->rank()),
        size_(site.host->levels.inter[site.index]->size()),
        site_(std::make_shared<ExchangeSite>(std::move(site))) {}
  StagedExchange(const StagedExchange&) = delete;
  StagedExchange& operator=(const StagedExchange&) = delete;
  // By now there is no Work of it, nor of the host's, as a lane runs one bucket at a time.
  ~StagedExchange() override {
    if (!site_->broken.ok()) {
      site_->host->fail(site_->broken);
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Work> allreduce(std::vector<TensorSpan> tensors,
                                  const Reduction& reduction) override {
    const auto block = std::make_shared<StagedBlock>();
    for (const TensorSpan& tensor : tensors) {
      if (tensor.in == nullptr || tensor.out == nullptr) {
        return refuse();
      }
      block->add({.from = tensor.in,
                  .to = tensor.out,
                  .device = site_->device,
                  .bytes = tensor.count * element_size(reduction.dtype)});
    }
    return std::make_unique<ExchangeWork>(
        site_,
        std::vector<Sequence::Start>{
            [site = site_, block] { return site->staging->copy_to_host(block); },
            [site = site_, block, reduction] { return reduce(*site, *block, reduction); },
            [site = site_, block] { return site->staging->copy_to_device(block); }});
  }

 private:
  int rank_;
  int size_;
  std::shared_ptr<ExchangeSite> site_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> make_staged_exchanges(const std::shared_ptr<GridState>& host,
                                                          Staging& staging,
                                                          std::int32_t device) {
  std::vector<std::unique_ptr<Group>> exchanges;
  exchanges.reserve(host->levels.inter.size());
  for (std::size_t index = 0; index < host->levels.inter.size(); ++index) {
    exchanges.push_back(std::make_unique<StagedExchange>(ExchangeSite{
        .host = host, .index = index, .staging = &staging, .device = device, .broken = {}}));
  }
  return exchanges;
}

}  // namespace lightcc
