#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "lightcc_cuda/fake_nccl/communicators.hpp"
#include "lightcc_cuda/fake_nccl/operations.hpp"
#include "lightcc_cuda/nccl/functions.hpp"

// What the fake driver offers.

namespace lightcc::cuda::fake {

/// As the variables were when a communicator was made from nothing.
static std::mutex seen_mutex;
static std::map<std::string, std::string> seen;

static void look_at_variables() {
  const std::lock_guard lock(seen_mutex);
  for (const char* const name : {"NCCL_NET_PLUGIN", "NCCL_NET"}) {
    const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
    seen[name] = text == nullptr ? "" : text;
  }
}

static std::atomic<int> aborts{0};
static std::atomic<int> inits{0};  // Since set_nccl().

/// Blocking, and without the traffic class that 2.26 takes from what was padding before.
static bool is_allowed(const NcclConfig& config) {
  return config.blocking == 1 && config.traffic_class == NcclConfig().traffic_class;
}

[[gnu::visibility("default")]] void set_nccl(const std::string& settings) {
  nccl_settings().set(settings);
  operations_begun = 0;
  inits = 0;
  const std::lock_guard lock(orders_mutex);
  orders.clear();
  streams_used.clear();
}
[[gnu::visibility("default")]] std::vector<std::vector<std::string>> orders_of_nccl() {
  const std::lock_guard lock(orders_mutex);
  std::vector<std::vector<std::string>> all;
  for (const auto& [thread, order] : orders) {
    all.push_back(order);
  }
  return all;
}
[[gnu::visibility("default")]] int streams_of_nccl() {
  const std::lock_guard lock(orders_mutex);
  return static_cast<int>(streams_used.size());
}
[[gnu::visibility("default")]] int live_nccl() {
  const std::lock_guard lock(comms_mutex);
  return static_cast<int>(comms.size());
}
[[gnu::visibility("default")]] int aborts_of_nccl() {
  return aborts;
}
[[gnu::visibility("default")]] int operations_of_nccl() {
  return operations_begun;
}
[[gnu::visibility("default")]] void lightcc_fake_nccl_set(const char* settings) {
  set_nccl(settings);
}
[[gnu::visibility("default")]] int lightcc_fake_nccl_live() {
  return live_nccl();
}
[[gnu::visibility("default")]] const char* lightcc_fake_nccl_saw(const char* variable) {
  const std::lock_guard lock(seen_mutex);
  return seen[variable].c_str();
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
  const NcclConfig expected;
  if (size < 1 || static_cast<std::size_t>(size) > fake::kMostRanks || rank < 0 || rank >= size ||
      config->magic != expected.magic || config->size != expected.size ||
      !fake::is_allowed(*config)) {
    return lightcc::cuda::kNcclInvalidArgument;
  }
  fake::look_at_variables();
  const int settings = fake::nccl_settings().current();
  const int absent = fake::nccl_settings().number("absent");
  if (absent != 0 && ++fake::inits == absent) {
    return lightcc::cuda::kNcclSystemError;
  }
  auto comm = std::make_shared<Comm>();
  comm->rank = static_cast<std::size_t>(rank);
  comm->size = static_cast<std::size_t>(size);
  if (!comm->join(id.bytes.data())) {
    return lightcc::cuda::kNcclSystemError;
  }
  fake::take_time();
  fake::Meeting& meeting = *comm->meeting;
  comm->wait([&] {
    return meeting.joined.load() >= comm->size ||
           (absent != 0 && fake::nccl_settings().current() != settings);
  });
  if (meeting.joined.load() < comm->size) {
    return lightcc::cuda::kNcclRemoteError;
  }
  // A rank that fails closes its connections, by which the others notice.
  const NcclCode failure = fake::nccl_settings().failure_of("ncclCommInitRankConfig");
  (failure == 0 ? meeting.made : meeting.failed) += 1;
  comm->wait([&] { return meeting.made.load() >= comm->size || meeting.failed.load() > 0; });
  if (failure != 0 || meeting.failed.load() > 0) {
    return failure != 0 ? failure : lightcc::cuda::kNcclRemoteError;
  }
  *made = fake::add(std::move(comm));
  return lightcc::cuda::kNcclSuccess;
}
LIGHTCC_NCCL_API ncclCommSplit(
    NcclHandle* handle, int color, int key, NcclHandle** made, NcclConfig* config) {
  LIGHTCC_NCCL_MAY_FAIL("ncclCommSplit")
  const auto comm = fake::find(handle);
  const fake::Call call(comm);
  if (const NcclCode code = call.check(); code != 0 || !fake::is_allowed(*config)) {
    return code != 0 ? code : lightcc::cuda::kNcclInvalidArgument;
  }
  *made = nullptr;
  const std::size_t split = comm->splits++ % fake::kMostSplits;
  auto& calls = comm->meeting->splits[split];
  calls[comm->rank].color = color;
  calls[comm->rank].key = key;
  calls[comm->rank].is_called.store(1);
  if (!comm->wait([&] {
        return comm->all([&](auto rank) { return calls[rank].is_called.load() != 0; });
      })) {
    return lightcc::cuda::kNcclInternalError;
  }
  if (auto child = fake::split_off(*comm, split); child != nullptr && comm->error == 0) {
    *made = fake::add(std::move(child));
  }
  return comm->error;
}
LIGHTCC_NCCL_API ncclCommGetAsyncError(NcclHandle* handle, NcclCode* state) {
  ::usleep(static_cast<unsigned>(1000 * fake::nccl_settings().number("asked")));
  const auto comm = fake::find(handle);
  if (comm == nullptr) {
    return lightcc::cuda::kNcclInvalidArgument;
  }
  *state = comm->error;
  return lightcc::cuda::kNcclSuccess;
}
LIGHTCC_NCCL_API ncclCommFinalize(NcclHandle* handle) {
  LIGHTCC_NCCL_MAY_FAIL("ncclCommFinalize")
  const auto comm = fake::find(handle);
  const fake::Call call(comm);
  if (const NcclCode code = call.check(); code != 0) {
    return code;
  }
  comm->is_finalized = true;
  return comm->wait([&] { return comm->running == 0; }) ? lightcc::cuda::kNcclSuccess
                                                        : lightcc::cuda::kNcclInternalError;
}
LIGHTCC_NCCL_API ncclCommDestroy(NcclHandle* handle) {
  const auto comm = fake::find(handle);
  if (comm == nullptr || !comm->is_finalized || comm->running > 0) {
    return lightcc::cuda::kNcclInvalidArgument;
  }
  fake::take_time();
  fake::wait_for_gpu(*comm);
  fake::remove(handle);
  return lightcc::cuda::kNcclSuccess;
}
LIGHTCC_NCCL_API ncclCommAbort(NcclHandle* handle) {
  const auto comm = fake::find(handle);
  if (comm == nullptr) {
    return lightcc::cuda::kNcclInvalidArgument;
  }
  comm->is_aborted = true;
  ++fake::aborts;
  fake::wait_for_gpu(*comm);
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
  return fake::begin(std::move(batch));
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
  LIGHTCC_NCCL_MAY_FAIL("ncclReduceScatter")
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
  LIGHTCC_NCCL_MAY_FAIL("ncclAllGather");
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
  LIGHTCC_NCCL_MAY_FAIL("ncclSend")
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
  LIGHTCC_NCCL_MAY_FAIL("ncclRecv")
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
  const fake::Call call(comm);
  if (const NcclCode code = call.check(); code != 0) {
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
