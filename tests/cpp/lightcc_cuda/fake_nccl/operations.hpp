// Operations of the fake NCCL: what the threads of streams do, and what calls bring to them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_nccl/arithmetic.hpp"
#include "lightcc_cuda/fake_nccl/communicators.hpp"
#include "lightcc_cuda/fake_nccl/meeting.hpp"
#include "lightcc_cuda/nccl/functions.hpp"

namespace lightcc::cuda::fake {

inline std::atomic<int> operations_begun{0};

/// Communicators in the order in which each thread has used them.
inline std::mutex orders_mutex;
inline std::map<std::thread::id, std::vector<std::string>> orders;
inline std::set<StreamHandle*> streams_used;

inline std::byte* memory_at(const void* address) {
  return static_cast<std::byte*>(lightcc_fake_cuda_memory(reinterpret_cast<Address>(address)));
}

using Take =
    std::function<void(std::size_t rank, const std::byte* data, std::size_t at, std::size_t n)>;

/// Shows the ranks `bytes` at `in`, a piece at a time; `take` sees every rank's, in rank order.
inline void exchange(
    Comm& comm, const Called& called, const std::byte* in, std::size_t bytes, const Take& take) {
  for (std::size_t at = 0; at < bytes; at += kSlotBytes) {
    const std::size_t count = std::min(kSlotBytes, bytes - at);
    comm.meeting->calls[comm.rank] = called;
    std::memcpy(comm.meeting->slots[comm.rank].data(), in + at, count);
    if (!comm.meet()) {
      return;
    }
    for (std::size_t rank = 0; rank < comm.size; ++rank) {
      if (!(comm.meeting->calls[rank] == called)) {
        (void)std::fprintf(stderr,
                           "fake NCCL: rank %zu calls %s of %llu, rank %zu %s of %llu\n",
                           comm.rank,
                           called.name.data(),
                           static_cast<unsigned long long>(called.count),
                           rank,
                           comm.meeting->calls[rank].name.data(),
                           static_cast<unsigned long long>(comm.meeting->calls[rank].count));
        comm.error = kNcclInternalError;
        return;
      }
      take(rank, comm.meeting->slots[rank].data(), at, count);
    }
    if (!comm.meet()) {
      return;
    }
  }
}

/// A message that is under way.
struct Transfer {
  bool sends = false;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t peer = 0;
  std::size_t done = 0;

  bool is_done() const { return done == bytes; }
  /// False: nothing could be done now.
  bool advance(Comm& comm) {
    Meeting::Box& box =
        sends ? comm.meeting->boxes[comm.rank][peer] : comm.meeting->boxes[peer][comm.rank];
    if (is_done() || (box.is_full.load() != 0) == sends) {
      return false;
    }
    const std::size_t count = std::min(kSlotBytes, bytes - done);
    if (sends) {
      box.bytes = bytes;
      std::memcpy(box.data.data(), data + done, count);
    } else if (box.bytes != bytes) {
      (void)std::fprintf(stderr, "fake NCCL: a message has another length than is expected\n");
      comm.error = kNcclInternalError;
      return false;
    } else {
      std::memcpy(data + done, box.data.data(), count);
    }
    box.is_full.store(sends ? 1 : 0);
    done += count;
    return true;
  }
};

/// What one group, or a call outside of one, brings to a stream.
struct Batch {
  std::shared_ptr<Comm> comm;
  StreamHandle* stream = nullptr;
  std::vector<std::function<void(Comm&)>> collectives;
  std::vector<Transfer> transfers;
  std::shared_ptr<void> on_gpu;  // While it is, and where the GPU is broken and runs nothing.
  int turn = 0;                  // Among those of the rank.
  bool breaks = false;
  bool hangs = false;
  std::optional<int> held_by;  // Settings.

  void run() {
    while (held_by == nccl_settings().current() && comm->goes_on()) {
      nap();
    }
    if (nccl_settings().number("room") == 0) {
      run_at_once();
    } else if (take_gpu()) {
      run_at_once();
      comm->gpu->is_taken = false;
    } else {
      --comm->running;
    }
  }

 private:
  /// Waits until there is room on the GPU; false: it was aborted.
  bool take_gpu() {
    const bool in_order = nccl_settings().number("ordered") != 0;
    if (!in_order && comm->rank % 2 != static_cast<std::size_t>(turn % 2)) {
      ::usleep(3000);  // Neighbours begin with different ones, if several wait.
    }
    RankGpu& gpu = *comm->gpu;
    while ((in_order && gpu.begun != turn) || gpu.is_taken.exchange(true)) {
      if (!comm->goes_on()) {
        return false;
      }
      nap();
    }
    ++gpu.begun;
    return true;
  }

  void run_at_once() {
    if (breaks) {
      comm->error = kNcclRemoteError;
    }
    while ((breaks || hangs) && !comm->is_aborted) {
      nap();
    }
    for (const auto& collective : collectives) {
      if (comm->goes_on()) {
        collective(*comm);
      }
    }
    while (comm->goes_on() && !std::ranges::all_of(transfers, &Transfer::is_done)) {
      bool moved = false;
      // Messages between two ranks go one after another.
      std::map<std::pair<bool, std::size_t>, bool> taken;
      for (Transfer& transfer : transfers) {
        if (!transfer.is_done() && !std::exchange(taken[{transfer.sends, transfer.peer}], true)) {
          moved = transfer.advance(*comm) || moved;
        }
      }
      if (!moved) {
        nap();
      }
    }
    --comm->running;
  }
};

inline thread_local int depth = 0;
inline thread_local std::optional<Batch> grouped;

/// Blocks until the peers of `batch` are connected, which takes a call of theirs: for messages
/// ever, for collectives from 2.22 on. Before that, they are when the communicator is made.
inline bool connect(const Batch& batch) {
  Comm& comm = *batch.comm;
  Meeting& meeting = *comm.meeting;
  if (!batch.collectives.empty() && !std::exchange(comm.is_connected, true) &&
      nccl_settings().number("version") >= 22200) {
    ++meeting.connected;
    if (!comm.wait([&] { return meeting.connected.load() >= comm.size; })) {
      return false;
    }
  }
  for (const Transfer& transfer : batch.transfers) {
    meeting.links[comm.rank][transfer.peer] = true;
  }
  return std::ranges::all_of(batch.transfers, [&](const Transfer& transfer) {
    return comm.wait([&] { return meeting.links[transfer.peer][comm.rank].load(); });
  });
}

inline NcclCode begin(Batch batch) {
  const int number = ++operations_begun;
  {
    const std::lock_guard lock(orders_mutex);
    orders[std::this_thread::get_id()].push_back(batch.comm->name);
    streams_used.insert(batch.stream);
  }
  batch.breaks = number == nccl_settings().number("broken");
  batch.hangs = number == nccl_settings().number("hangs");
  if (const std::string hold = nccl_settings().text("behind");
      !hold.empty() && number > std::atoi(hold.c_str())) {
    batch.held_by = nccl_settings().current();
  }
  if (number == nccl_settings().number("connects")) {
    batch.comm->error = batch.breaks ? kNcclRemoteError : kNcclSuccess;
    while (!batch.comm->is_aborted) {
      nap();
    }
  }
  if (!connect(batch)) {
    return batch.comm->is_aborted ? kNcclInternalError : batch.comm->error.load();
  }
  ++batch.comm->running;
  batch.turn = batch.comm->gpu->called++;
  ++batch.comm->gpu->operations;
  batch.on_gpu = std::shared_ptr<void>(
      nullptr, [gpu = batch.comm->gpu](void* /*nothing*/) { --gpu->operations; });
  lightcc_fake_cuda_enqueue(
      batch.stream,
      [](void* it) { static_cast<Batch*>(it)->run(); },
      new Batch(std::move(batch)),
      [](void* it) { delete static_cast<Batch*>(it); });
  return kNcclSuccess;
}

/// Adds to the group that was begun, or runs by itself.
inline NcclCode submit(NcclHandle* handle,
                       StreamHandle* stream,
                       std::function<void(Comm&)> collective,
                       std::optional<Transfer> transfer) {
  const std::shared_ptr<Comm> comm = find(handle);
  const Call one(comm);
  if (const NcclCode code = one.check(); code != kNcclSuccess) {
    return code;
  }
  const bool is_grouped = depth > 0;
  if (!is_grouped || !grouped.has_value()) {
    grouped.emplace().comm = comm;
    grouped->stream = stream;
  }
  if (grouped->comm != comm || grouped->stream != stream) {
    return kNcclInvalidUsage;  // lightcc has no such groups.
  }
  if (collective) {
    grouped->collectives.push_back(std::move(collective));
  }
  if (transfer.has_value()) {
    grouped->transfers.push_back(*transfer);
  }
  if (is_grouped) {
    return kNcclSuccess;
  }
  const NcclCode begun = begin(std::move(*grouped));
  grouped.reset();
  return begun;
}

inline Called call_of(
    const char* name, std::size_t count, NcclType type, NcclOp op = 0, int root = 0) {
  Called called{.name = {}, .count = count, .type = type, .op = op, .root = root, .factor = 1.0};
  (void)std::snprintf(called.name.data(), called.name.size(), "%s", name);
  return called;
}

inline constexpr NcclOp kFirstScaledSum = 100;

/// Writes the factor of an operator that was made, and makes it a sum.
inline bool resolve(const std::shared_ptr<Comm>& comm, Called& called) {
  if (called.op < kFirstScaledSum) {
    return called.op >= 0 && called.op <= kNcclMin;
  }
  const auto index = static_cast<std::size_t>(called.op - kFirstScaledSum);
  if (comm == nullptr || index >= comm->factors.size()) {
    return false;
  }
  called.factor = comm->factors[index];
  called.op = kNcclSum;
  return true;
}

/// A reduction of which this rank gets `count` elements from the `first` on, if it gets any.
inline NcclCode submit_reduction(Called called,
                                 const void* in,
                                 std::size_t elements,
                                 void* out,
                                 std::size_t first,
                                 std::size_t count,
                                 NcclHandle* handle,
                                 StreamHandle* stream) {
  if (!resolve(find(handle), called)) {
    return kNcclInvalidArgument;
  }
  return submit(
      handle,
      stream,
      [=](Comm& comm) {
        const std::size_t size = size_of(called.type);
        std::byte* const to = count == 0 ? nullptr : memory_at(out);
        exchange(comm,
                 called,
                 memory_at(in),
                 elements * size,
                 [=](std::size_t rank, const std::byte* data, std::size_t at, std::size_t bytes) {
                   const std::size_t begin = std::max(at, first * size);
                   const std::size_t end = std::min(at + bytes, (first + count) * size);
                   if (begin < end) {
                     combine_as(called.type,
                                to + (begin - first * size),
                                data + (begin - at),
                                (end - begin) / size,
                                called.op,
                                called.factor,
                                rank == 0);
                   }
                 });
      },
      std::nullopt);
}

}  // namespace lightcc::cuda::fake
