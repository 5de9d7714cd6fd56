#include "lightcc/collectives/mpi_work.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace lightcc {
namespace {

constexpr std::size_t kAlignment = 64;

/// Keeps what MPI may still read and write until the process ends.
void keep_for_ever(std::unique_ptr<MpiSlot> slot) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<MpiSlot>>;  // Outlives all threads.
  const std::scoped_lock lock(mutex);
  kept.push_back(std::move(slot));
}

}  // namespace

Status MpiSlot::reserve(std::size_t wanted) {
  if (wanted <= bytes) {
    return {};
  }
  const std::size_t rounded = (wanted + kAlignment - 1) / kAlignment * kAlignment;
  memory.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
  bytes = memory == nullptr ? 0 : rounded;
  return memory == nullptr
             ? make_error(
                   ErrorCode::kSystem, "cannot allocate %zu bytes for an operation of MPI", rounded)
             : Status();
}

std::unique_ptr<MpiSlot> MpiLink::take() {
  if (free_.empty()) {
    return std::make_unique<MpiSlot>();
  }
  std::unique_ptr<MpiSlot> slot = std::move(free_.back());
  free_.pop_back();
  return slot;
}

void MpiLink::abandon(std::unique_ptr<MpiSlot> slot) {
  keep_for_ever(std::move(slot));
  comm_->keep();
  fail(Status(ErrorCode::kShutDown, "an operation before was dropped while MPI carried it out"));
}

void MpiLink::fail(const Status& status) {
  if (status_.ok()) {
    status_ = status;
  }
}

MpiWork::~MpiWork() {
  for (; ended_ < begun_; ++ended_) {
    link_->abandon(std::move(slots_[ended_ % kUnderWay]));
  }
  for (auto& slot : slots_) {
    if (slot != nullptr) {
      link_->give_back(std::move(slot));
    }
  }
}

// hot
Result<Progress> MpiWork::advance() {
  LIGHTCC_RETURN_IF_ERROR(link_->status());
  bool moved = false;
  if (begun_ < rounds_ && begun_ - ended_ < kUnderWay) {
    LIGHTCC_RETURN_IF_ERROR(begin_next());
    moved = true;
  }
  if (ended_ < begun_) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool ended, end_next());
    moved = moved || ended;
  }
  if (ended_ == rounds_) {
    return Progress::kDone;
  }
  return moved ? Progress::kMoved : Progress::kIdle;
}

Status MpiWork::begin_next() {
  if (begun_ == 0) {
    LIGHTCC_RETURN_IF_ERROR(link_->library().check_not_finalized());
  }
  std::unique_ptr<MpiSlot>& slot = slots_[begun_ % kUnderWay];
  if (slot == nullptr) {
    slot = link_->take();
  }
  LIGHTCC_RETURN_IF_ERROR(slot->reserve(std::max(bytes_of(begun_), std::size_t{1})));
  slot->request = nullptr;
  Status status = link_->check(begin(begun_, *slot), call_);
  if (!status.ok()) {
    link_->fail(status);
    return status;
  }
  ++begun_;
  return {};
}

Result<bool> MpiWork::end_next() {
  MpiSlot& slot = *slots_[ended_ % kUnderWay];
  int flag = 0;
  alignas(std::max_align_t) std::array<std::byte, 256> status{};  // More than any MPI_Status.
  Status tested = link_->check(mpi().test(&slot.request, &flag, status.data()), call_);
  if (!tested.ok()) {
    link_->fail(tested);
    return tested;
  }
  if (flag != 0) {
    end(ended_++, slot);
  }
  return flag != 0;
}

}  // namespace lightcc
