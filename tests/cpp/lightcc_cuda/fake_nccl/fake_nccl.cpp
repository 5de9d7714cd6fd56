#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_driver/settings.hpp"
#include "lightcc_cuda/fake_nccl/arithmetic.hpp"
#include "lightcc_cuda/fake_nccl/meeting.hpp"
#include "lightcc_cuda/nccl/functions.hpp"

namespace lightcc::cuda::fake {
namespace {

Settings& nccl_settings() {
  static Settings all("LIGHTCC_FAKE_NCCL", {{"version", "21805"}});
  return all;
}
std::atomic<int> operations_begun{0};

void nap() {
  ::usleep(50);
}

std::byte* memory_at(const void* address) {
  return static_cast<std::byte*>(lightcc_fake_cuda_memory(reinterpret_cast<Address>(address)));
}

/// A communicator of one rank. The launcher calls, streams run what was called.
struct Comm {
  std::size_t rank = 0;
  std::size_t size = 0;
  std::string name;
  Meeting* meeting = nullptr;
  std::atomic<NcclCode> error{kNcclSuccess};
  std::atomic<bool> is_aborted{false};
  std::atomic<int> running{0};
  bool is_made = false;
  bool is_finalized = false;
  int answers_left = 0;  // That are still "in progress".
  std::vector<double> factors;
  std::uint64_t turn = 0;  // Of the stream's thread.
  // The split that goes on.
  NcclHandle** split_to = nullptr;
  std::size_t split = 0;
  std::size_t splits = 0;

  ~Comm() {
    if (meeting != nullptr) {
      ::shm_unlink(name.c_str());
      meeting->close();
    }
  }

  bool join(std::string file) {
    name = std::move(file);
    meeting = Meeting::open(name);
    if (meeting != nullptr) {
      meeting->joined.fetch_add(1);
    }
    return meeting != nullptr;
  }

  bool goes_on() const { return !is_aborted && error == kNcclSuccess; }

  /// Waits for all ranks; false: it was aborted.
  bool meet() {
    meeting->turns[rank].store(++turn);
    for (std::size_t other = 0; other < size; ++other) {
      while (meeting->turns[other].load() < turn) {
        if (!goes_on()) {
          return false;
        }
        nap();
      }
    }
    return goes_on();
  }
};

std::mutex comms_mutex;
std::map<std::uintptr_t, std::shared_ptr<Comm>> comms;  // By handle, which is a number.
std::uintptr_t last_handle = 0;

NcclHandle* add(std::shared_ptr<Comm> comm) {
  const std::lock_guard lock(comms_mutex);
  comms[++last_handle] = std::move(comm);
  return reinterpret_cast<NcclHandle*>(last_handle);
}
std::shared_ptr<Comm> find(NcclHandle* handle) {
  const std::lock_guard lock(comms_mutex);
  const auto found = comms.find(reinterpret_cast<std::uintptr_t>(handle));
  return found == comms.end() ? nullptr : found->second;
}
void remove(NcclHandle* handle) {
  std::shared_ptr<Comm> last;
  const std::lock_guard lock(comms_mutex);
  const auto found = comms.find(reinterpret_cast<std::uintptr_t>(handle));
  last = std::move(found->second);
  comms.erase(found);
}

/// Whether a call may be made, or what it returns.
NcclCode check_ready(const std::shared_ptr<Comm>& comm) {
  if (comm == nullptr || comm->is_aborted || comm->is_finalized) {
    return kNcclInvalidArgument;
  }
  if (!comm->is_made || comm->answers_left > 0 || comm->split_to != nullptr) {
    return kNcclInvalidArgument;  // The call before has not ended.
  }
  return comm->error;
}

// ---- Operations, on the thread of a stream.

using Take =
    std::function<void(std::size_t rank, const std::byte* data, std::size_t at, std::size_t n)>;

/// As a driver does, cuMemFree() waits for what reads: here until the memory's lock is free.
void end_reading() {
  (void)lightcc_fake_cuda_memory(0);
}

/// Shows the ranks `bytes` at `in`, a piece at a time; `take` sees every rank's.
void exchange(
    Comm& comm, const Called& called, const std::byte* in, std::size_t bytes, const Take& take) {
  for (std::size_t at = 0; at < bytes; at += kSlotBytes) {
    const std::size_t count = std::min(kSlotBytes, bytes - at);
    comm.meeting->calls[comm.rank] = called;
    std::memcpy(comm.meeting->slots[comm.rank].data(), in + at, count);
    end_reading();
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
      end_reading();
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
  bool breaks = false;
  bool hangs = false;

  void run() {
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

thread_local int depth = 0;
thread_local std::optional<Batch> grouped;

void begin(Batch batch) {
  const int number = ++operations_begun;
  batch.breaks = number == nccl_settings().number("broken");
  batch.hangs = number == nccl_settings().number("hangs");
  batch.comm->answers_left = 2;
  ++batch.comm->running;
  StreamHandle* const stream = batch.stream;
  lightcc_fake_cuda_enqueue(
      stream,
      [](void* it) {
        const std::unique_ptr<Batch> owned(static_cast<Batch*>(it));
        owned->run();
      },
      new Batch(std::move(batch)));
}

/// Adds to the group that was begun, or runs by itself.
NcclCode submit(NcclHandle* handle,
                StreamHandle* stream,
                std::function<void(Comm&)> collective,
                std::optional<Transfer> transfer) {
  const std::shared_ptr<Comm> comm = find(handle);
  if (const NcclCode code = check_ready(comm); code != kNcclSuccess) {
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
  begin(std::move(*grouped));
  grouped.reset();
  return kNcclInProgress;
}

Called call_of(const char* name, std::size_t count, NcclType type, NcclOp op = 0, int root = 0) {
  Called called{.name = {}, .count = count, .type = type, .op = op, .root = root, .factor = 1.0};
  (void)std::snprintf(called.name.data(), called.name.size(), "%s", name);
  return called;
}

constexpr NcclOp kFirstScaledSum = 100;

/// Writes the factor of an operator that was made, and makes it a sum.
bool resolve(const std::shared_ptr<Comm>& comm, Called& called) {
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
NcclCode submit_reduction(Called called,
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

/// Goes on with what communicator and caller wait for.
void advance(Comm& comm) {
  if (!comm.is_made && comm.meeting->joined.load() >= comm.size) {
    comm.is_made = true;
  }
  if (comm.split_to == nullptr) {
    return;
  }
  auto& calls = comm.meeting->splits[comm.split];
  for (std::size_t rank = 0; rank < comm.size; ++rank) {
    if (calls[rank].is_called.load() == 0) {
      return;
    }
  }
  NcclHandle** const to = std::exchange(comm.split_to, nullptr);
  const Meeting::Split& own = calls[comm.rank];
  if (own.color == kNcclNoColor) {
    return;
  }
  auto child = std::make_shared<Comm>();
  for (std::size_t rank = 0; rank < comm.size; ++rank) {
    const Meeting::Split& other = calls[rank];
    if (other.color == own.color) {
      ++child->size;
      child->rank += std::pair(other.key, rank) < std::pair(own.key, comm.rank) ? 1U : 0U;
    }
  }
  const bool joined =
      child->join(comm.name + '-' + std::to_string(comm.split) + '-' + std::to_string(own.color));
  if (!joined) {
    comm.error = kNcclSystemError;
    return;
  }
  *to = add(std::move(child));
}

}  // namespace

[[gnu::visibility("default")]] void set_nccl(const std::string& settings) {
  nccl_settings().set(settings);
  operations_begun = 0;
}
[[gnu::visibility("default")]] int live_nccl() {
  const std::lock_guard lock(comms_mutex);
  return static_cast<int>(comms.size());
}
[[gnu::visibility("default")]] int operations_of_nccl() {
  return operations_begun;
}
[[gnu::visibility("default")]] int lightcc_fake_nccl_live() {
  return live_nccl();
}
[[gnu::visibility("default")]] int lightcc_fake_nccl_operations() {
  return operations_of_nccl();
}

}  // namespace lightcc::cuda::fake

namespace fake = lightcc::cuda::fake;
using fake::Called;
using fake::Comm;
using lightcc::cuda::NcclCode;
using lightcc::cuda::NcclConfig;
using lightcc::cuda::NcclHandle;
using lightcc::cuda::NcclOp;
using lightcc::cuda::NcclType;
using lightcc::cuda::NcclUniqueId;
using lightcc::cuda::StreamHandle;

#define LIGHTCC_NCCL_API extern "C" [[gnu::visibility("default")]] NcclCode
#define LIGHTCC_NCCL_MAY_FAIL(name)                                               \
  if (const NcclCode failure = fake::nccl_settings().failure_of(name); failure) { \
    return failure;                                                               \
  }

LIGHTCC_NCCL_API ncclGetVersion(int* version) {
  *version = fake::nccl_settings().number("version");
  return lightcc::cuda::kNcclSuccess;
}
LIGHTCC_NCCL_API ncclGetUniqueId(NcclUniqueId* id) {
  LIGHTCC_NCCL_MAY_FAIL("ncclGetUniqueId")
  static std::atomic<int> count{0};
  *id = {};
  (void)std::snprintf(
      id->bytes.data(), id->bytes.size(), "/lightcc-fake-nccl-%d-%d", ::getpid(), ++count);
  return lightcc::cuda::kNcclSuccess;
}
LIGHTCC_NCCL_API ncclCommInitRankConfig(
    NcclHandle** made, int size, NcclUniqueId id, int rank, NcclConfig* config) {
  LIGHTCC_NCCL_MAY_FAIL("ncclCommInitRankConfig")
  const NcclConfig expected;
  if (size < 1 || static_cast<std::size_t>(size) > fake::kMostRanks || rank < 0 || rank >= size ||
      config->magic != expected.magic || config->size != expected.size || config->blocking != 0) {
    return lightcc::cuda::kNcclInvalidArgument;
  }
  auto comm = std::make_shared<Comm>();
  comm->rank = static_cast<std::size_t>(rank);
  comm->size = static_cast<std::size_t>(size);
  if (!comm->join(id.bytes.data())) {
    return lightcc::cuda::kNcclSystemError;
  }
  *made = fake::add(std::move(comm));
  return lightcc::cuda::kNcclInProgress;
}
LIGHTCC_NCCL_API ncclCommSplit(
    NcclHandle* handle, int color, int key, NcclHandle** made, NcclConfig* config) {
  LIGHTCC_NCCL_MAY_FAIL("ncclCommSplit")
  const auto comm = fake::find(handle);
  if (const NcclCode code = fake::check_ready(comm); code != 0 || config->blocking != 0) {
    return code != 0 ? code : lightcc::cuda::kNcclInvalidArgument;
  }
  *made = nullptr;
  comm->split = comm->splits++ % fake::kMostSplits;
  comm->split_to = made;
  auto& own = comm->meeting->splits[comm->split][comm->rank];
  own.color = color;
  own.key = key;
  own.is_called.store(1);
  return lightcc::cuda::kNcclInProgress;
}
LIGHTCC_NCCL_API ncclCommGetAsyncError(NcclHandle* handle, NcclCode* state) {
  const auto comm = fake::find(handle);
  if (comm == nullptr) {
    return lightcc::cuda::kNcclInvalidArgument;
  }
  fake::advance(*comm);
  const bool goes_on = !comm->is_made || comm->split_to != nullptr ||
                       (comm->is_finalized && comm->running > 0) ||
                       (comm->answers_left > 0 && --comm->answers_left > 0);
  *state = comm->error != 0 ? comm->error.load() : goes_on ? lightcc::cuda::kNcclInProgress : 0;
  return lightcc::cuda::kNcclSuccess;
}
LIGHTCC_NCCL_API ncclCommFinalize(NcclHandle* handle) {
  LIGHTCC_NCCL_MAY_FAIL("ncclCommFinalize")
  const auto comm = fake::find(handle);
  if (const NcclCode code = fake::check_ready(comm); code != 0) {
    return code;
  }
  comm->is_finalized = true;
  return lightcc::cuda::kNcclInProgress;
}
LIGHTCC_NCCL_API ncclCommDestroy(NcclHandle* handle) {
  const auto comm = fake::find(handle);
  if (comm == nullptr || !comm->is_finalized || comm->running > 0) {
    return lightcc::cuda::kNcclInvalidArgument;
  }
  fake::remove(handle);
  return lightcc::cuda::kNcclSuccess;
}
LIGHTCC_NCCL_API ncclCommAbort(NcclHandle* handle) {
  const auto comm = fake::find(handle);
  if (comm == nullptr) {
    return lightcc::cuda::kNcclInvalidArgument;
  }
  comm->is_aborted = true;
  fake::remove(handle);
  while (fake::nccl_settings().number("lost") != 0) {
    ::usleep(1000);
  }
  return lightcc::cuda::kNcclSuccess;
}
extern "C" [[gnu::visibility("default")]] const char* ncclGetErrorString(NcclCode code) {
  return code == lightcc::cuda::kNcclRemoteError
             ? "remote process exited or there was a network error"
             : "error of the fake NCCL";
}
extern "C" [[gnu::visibility("default")]] const char* ncclGetLastError(NcclHandle* /*comm*/) {
  return "";
}
LIGHTCC_NCCL_API ncclGroupStart() {
  ++fake::depth;
  return lightcc::cuda::kNcclSuccess;
}
LIGHTCC_NCCL_API ncclGroupEnd() {
  if (--fake::depth > 0 || !fake::grouped.has_value()) {
    return lightcc::cuda::kNcclSuccess;
  }
  fake::Batch batch = std::move(*fake::grouped);
  fake::grouped.reset();
  LIGHTCC_NCCL_MAY_FAIL("ncclGroupEnd")
  fake::begin(std::move(batch));
  return lightcc::cuda::kNcclInProgress;
}

LIGHTCC_NCCL_API ncclAllReduce(const void* in,
                               void* out,
                               std::size_t count,
                               NcclType type,
                               NcclOp op,
                               NcclHandle* comm,
                               StreamHandle* stream) {
  LIGHTCC_NCCL_MAY_FAIL("ncclAllReduce")
  return fake::submit_reduction(
      fake::call_of("ncclAllReduce", count, type, op), in, count, out, 0, count, comm, stream);
}
LIGHTCC_NCCL_API ncclReduce(const void* in,
                            void* out,
                            std::size_t count,
                            NcclType type,
                            NcclOp op,
                            int root,
                            NcclHandle* handle,
                            StreamHandle* stream) {
  const auto comm = fake::find(handle);
  const bool gets = comm != nullptr && static_cast<int>(comm->rank) == root;
  return fake::submit_reduction(fake::call_of("ncclReduce", count, type, op, root),
                                in,
                                count,
                                out,
                                0,
                                gets ? count : 0,
                                handle,
                                stream);
}
LIGHTCC_NCCL_API ncclReduceScatter(const void* in,
                                   void* out,
                                   std::size_t count,
                                   NcclType type,
                                   NcclOp op,
                                   NcclHandle* handle,
                                   StreamHandle* stream) {
  const auto comm = fake::find(handle);
  if (comm == nullptr) {
    return lightcc::cuda::kNcclInvalidArgument;
  }
  return fake::submit_reduction(fake::call_of("ncclReduceScatter", count, type, op),
                                in,
                                comm->size * count,
                                out,
                                comm->rank * count,
                                count,
                                handle,
                                stream);
}
LIGHTCC_NCCL_API ncclBroadcast(const void* in,
                               void* out,
                               std::size_t count,
                               NcclType type,
                               int root,
                               NcclHandle* handle,
                               StreamHandle* stream) {
  const Called called = fake::call_of("ncclBroadcast", count, type, 0, root);
  return fake::submit(
      handle,
      stream,
      [=](Comm& comm) {
        const bool is_root = static_cast<int>(comm.rank) == root;
        std::byte* const to = fake::memory_at(out);
        fake::exchange(
            comm,
            called,
            is_root ? fake::memory_at(in) : to,
            count * fake::size_of(type),
            [=](std::size_t rank, const std::byte* data, std::size_t at, std::size_t bytes) {
              if (static_cast<int>(rank) == root) {
                std::memcpy(to + at, data, bytes);
              }
            });
      },
      std::nullopt);
}
LIGHTCC_NCCL_API ncclAllGather(const void* in,
                               void* out,
                               std::size_t count,
                               NcclType type,
                               NcclHandle* handle,
                               StreamHandle* stream) {
  const Called called = fake::call_of("ncclAllGather", count, type);
  const std::size_t block = count * fake::size_of(type);
  return fake::submit(
      handle,
      stream,
      [=](Comm& comm) {
        std::byte* const to = fake::memory_at(out);
        fake::exchange(
            comm,
            called,
            fake::memory_at(in),
            block,
            [=](std::size_t rank, const std::byte* data, std::size_t at, std::size_t bytes) {
              std::memcpy(to + rank * block + at, data, bytes);
            });
      },
      std::nullopt);
}
LIGHTCC_NCCL_API ncclSend(const void* in,
                          std::size_t count,
                          NcclType type,
                          int peer,
                          NcclHandle* comm,
                          StreamHandle* stream) {
  return fake::submit(comm,
                      stream,
                      {},
                      fake::Transfer{.sends = true,
                                     .data = fake::memory_at(in),
                                     .bytes = count * fake::size_of(type),
                                     .peer = static_cast<std::size_t>(peer)});
}
LIGHTCC_NCCL_API ncclRecv(
    void* out, std::size_t count, NcclType type, int peer, NcclHandle* comm, StreamHandle* stream) {
  return fake::submit(comm,
                      stream,
                      {},
                      fake::Transfer{.sends = false,
                                     .data = fake::memory_at(out),
                                     .bytes = count * fake::size_of(type),
                                     .peer = static_cast<std::size_t>(peer)});
}
LIGHTCC_NCCL_API ncclRedOpCreatePreMulSum(
    NcclOp* op, void* scalar, NcclType type, int residence, NcclHandle* handle) {
  LIGHTCC_NCCL_MAY_FAIL("ncclRedOpCreatePreMulSum")
  const auto comm = fake::find(handle);
  if (const NcclCode code = fake::check_ready(comm); code != 0) {
    return code;
  }
  if (residence != lightcc::cuda::kNcclScalarOfHost) {
    return lightcc::cuda::kNcclInvalidArgument;
  }
  double factor = 1.0;
  std::uint16_t half = 0;
  float single = 0;
  switch (type) {
    case lightcc::cuda::kNcclFloat64:
      std::memcpy(&factor, scalar, sizeof(factor));
      break;
    case lightcc::cuda::kNcclFloat32:
      std::memcpy(&single, scalar, sizeof(single));
      factor = single;
      break;
    case lightcc::cuda::kNcclFloat16:
      std::memcpy(&half, scalar, sizeof(half));
      factor = lightcc::half_to_float(half);
      break;
    case lightcc::cuda::kNcclBfloat16:
      std::memcpy(&half, scalar, sizeof(half));
      factor = lightcc::bfloat16_to_float(half);
      break;
    default:
      return lightcc::cuda::kNcclInvalidArgument;
  }
  comm->factors.push_back(factor);
  *op = fake::kFirstScaledSum + static_cast<NcclOp>(comm->factors.size()) - 1;
  return lightcc::cuda::kNcclSuccess;
}
LIGHTCC_NCCL_API ncclRedOpDestroy(NcclOp op, NcclHandle* handle) {
  const auto comm = fake::find(handle);
  const bool is_known = comm != nullptr && op >= fake::kFirstScaledSum;
  return is_known ? lightcc::cuda::kNcclSuccess : lightcc::cuda::kNcclInvalidArgument;
}

// It is what the library takes it for.
#define LIGHTCC_SAME_NCCL(member, symbol, result, arguments) \
  static_assert(                                             \
      std::is_same_v<decltype(&::symbol), decltype(lightcc::cuda::NcclFunctions::member)>);
LIGHTCC_NCCL_FUNCTIONS(LIGHTCC_SAME_NCCL)
