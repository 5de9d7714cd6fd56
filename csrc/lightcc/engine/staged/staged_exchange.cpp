#include "lightcc/engine/staged/staged_exchange.hpp"

#include <cstddef>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/grid/grid_state.hpp"
#include "lightcc/engine/partial_group.hpp"

namespace lightcc {
namespace {

/// What an exchange and its Works share.
struct ExchangeSite {
  std::shared_ptr<GridState> host;
  std::size_t index = 0;  // Of the inter group.
  Staging* staging = nullptr;
  std::int32_t device = 0;
  Status broken;  // Why a Work did not come to its end.
};

class ExchangeWork final : public Work {
 public:
  ExchangeWork(std::shared_ptr<ExchangeSite> site,
               const std::vector<TensorSpan>& shards,
               const Reduction& reduction)
      : site_(std::move(site)), reduction_(reduction) {
    for (const TensorSpan& shard : shards) {
      block_->add({.from = shard.in,
                   .to = shard.out,
                   .device = site_->device,
                   .bytes = shard.count * element_size(reduction.dtype)});
    }
    work_ = site_->staging->copy_to_host(block_);
  }
  ExchangeWork(const ExchangeWork&) = delete;
  ExchangeWork& operator=(const ExchangeWork&) = delete;
  ~ExchangeWork() override {
    if (stage_ != Stage::kDone && site_->broken.ok()) {
      site_->broken = {ErrorCode::kShutDown, "an earlier operation of this group was abandoned"};
    }
  }

  Result<Progress> advance() override {
    while (true) {
      Result<Progress> progress = work_->advance();
      if (!progress.ok()) {
        site_->broken = progress.status();
      }
      if (!progress.ok() || *progress != Progress::kDone) {
        return progress;
      }
      work_.reset();
      if (stage_ == Stage::kBack) {
        stage_ = Stage::kDone;
        return Progress::kDone;
      }
      if (stage_ == Stage::kToHost) {
        stage_ = Stage::kReduce;
        work_ = reduce();
      } else {
        stage_ = Stage::kBack;
        work_ = site_->staging->copy_to_device(block_);
      }
    }
  }

 private:
  enum class Stage : std::uint8_t { kToHost, kReduce, kBack, kDone };

  std::unique_ptr<Work> reduce() const {
    GridState& host = *site_->host;
    if (!host.status.ok()) {
      return std::make_unique<FailedWork>(host.status);
    }
    std::vector<TensorSpan> copies;
    copies.reserve(block_->parts.size());
    for (const StagedPart& part : block_->parts) {
      std::byte* const data = block_->at(part);
      copies.push_back(
          {.in = data, .out = data, .count = part.bytes / element_size(reduction_.dtype)});
    }
    return host.levels.inter[site_->index]->allreduce(std::move(copies), reduction_);
  }

  std::shared_ptr<ExchangeSite> site_;
  Reduction reduction_;
  std::shared_ptr<StagedBlock> block_ = std::make_shared<StagedBlock>();
  Stage stage_ = Stage::kToHost;
  std::unique_ptr<Work> work_;  // Of the stage. Goes before what it works on.
};

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
    for (const TensorSpan& tensor : tensors) {
      if (tensor.in == nullptr || tensor.out == nullptr) {
        return refuse();
      }
    }
    return std::make_unique<ExchangeWork>(site_, tensors, reduction);
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
