// libnccl-net-mutant.so: version 8 of another plugin, with one rule broken.
//
// MUTANT_OF is the plugin's path and MUTANT the name of what is broken ("none": nothing). A mutant
// sits around the plugin's table, so that the plugin itself holds no line that is there for tests;
// each must be found by net-conform (CMakeLists.txt lists which rule finds which). Unlike a real
// plugin this one is unmapped by dlclose.
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "abi/layout.hpp"

namespace {

using namespace harp::abi;

std::string_view mutant() {
  static const char* const kName = std::getenv("MUTANT");  // NOLINT(concurrency-mt-unsafe)
  return kName != nullptr ? kName : "none";
}

bool is(std::string_view name) {
  return mutant() == name;
}

const NetV8* load() {
  const char* path = std::getenv("MUTANT_OF");  // NOLINT(concurrency-mt-unsafe)
  void* library = path != nullptr ? ::dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  return library != nullptr ? static_cast<const NetV8*>(::dlsym(library, "ncclNetPlugin_v8"))
                            : nullptr;
}

const NetV8& real() {
  static const NetV8* const kTable = load();
  return *kTable;
}

/// What the mutant knows of one request.
struct Wrapped {
  void* request = nullptr;  ///< The plugin's; null: there is none, and it is done.
  void* comm = nullptr;
  bool is_send = false;
  int count = 0;
  std::array<std::byte*, 8> data{};
  std::array<int, 8> bytes{};
  std::unique_ptr<std::byte[]> own;  // NOLINT(modernize-avoid-c-arrays)
  bool is_told_done = false;
};

struct HeldBack {
  std::vector<std::byte> data;
  int tag = 0;
  void* mr = nullptr;
};

std::mutex mutex;
std::map<void*, int> outstanding;               ///< By comm.
std::map<void*, std::vector<Wrapped*>> ghosts;  ///< Sends that were called done too early.
std::map<void*, HeldBack> held_back;
std::map<void*, bool> completes_next;
std::atomic<unsigned> calls{0};

std::atomic<int> inits{0};

/// The plugin goes on with sends that were called done; the tool has forgotten them.
void move_ghosts() {
  while (true) {
    {
      const std::scoped_lock lock(mutex);
      for (auto& [comm, sends] : ghosts) {
        std::erase_if(sends, [](Wrapped* ghost) {
          int done = 0;
          real().test(ghost->request, &done, nullptr);
          return done == 1;
        });
      }
    }
    ::sched_yield();
  }
}

Result init(Logger logger) {
  if (is("init-once") && inits++ > 0) {
    return Result::kInternalError;
  }
  if (is("thread-outlives-unload")) {
    std::thread([] {
      for (std::atomic<unsigned> i = 0;; ++i) {
      }
    }).detach();
  }
  if (is("done-early") && !calls++) {
    std::thread(move_ghosts).detach();
  }
  return real().init(logger);
}

Result devices(int* count) {
  return real().devices(count);
}

Result get_properties(int device, PropertiesV8* properties) {
  const PropertiesV8 before = *properties;
  const Result result = real().get_properties(device, properties);
  if (is("properties-unwritten")) {
    properties->latency_us = before.latency_us;
  }
  if (is("properties-wrong")) {
    properties->max_recvs = 0;
  }
  if (is("properties-beyond")) {
    std::memset(properties, 0, sizeof(PropertiesV12));
  }
  if (is("any-device") && result != Result::kSuccess) {
    return real().get_properties(0, properties);
  }
  return result;
}

Result listen(int device, void* handle, void** comm) {
  const Result result = real().listen(device, handle, comm);
  if (is("handle-overrun")) {
    std::memset(static_cast<std::byte*>(handle) + kHandleBytes - 4, 1, 8);
  }
  if (is("handle-long")) {
    std::memset(static_cast<std::byte*>(handle) + kHandleBytesV4, 1, 10);
  }
  return result;
}

Result connect(int device, void* handle, void** comm, DeviceHandle** offload) {
  static void* first_address = nullptr;
  if (is("handle-address")) {
    first_address = first_address == nullptr ? handle : first_address;
    if (first_address != handle || ++calls < 3) {
      *comm = nullptr;
      return Result::kSuccess;
    }
  }
  if (is("comm-unwritten") && ++calls % 2 == 1) {
    return Result::kSuccess;
  }
  const Result result = real().connect(device, handle, comm, offload);
  if (is("connect-hides-errors") && result != Result::kSuccess) {
    *comm = nullptr;
    return Result::kSuccess;
  }
  return result;
}

Result accept(void* listen_comm, void** comm, DeviceHandle** offload) {
  Result result = real().accept(listen_comm, comm, offload);
  while (is("accept-blocks") && result == Result::kSuccess && *comm == nullptr) {
    ::sched_yield();
    result = real().accept(listen_comm, comm, offload);
  }
  return result;
}

Result reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mr) {
  return real().reg_mr(comm, data, bytes, type, mr);
}

Result dereg_mr(void* comm, void* mr) {
  return real().dereg_mr(comm, mr);
}

Result wrap(Result result, std::unique_ptr<Wrapped> wrapped, void** request) {
  *request = nullptr;
  if (result == Result::kSuccess && wrapped->request != nullptr) {
    const std::scoped_lock lock(mutex);
    ++outstanding[wrapped->comm];
    *request = wrapped.release();
  }
  return result;
}

bool is_over_the_limit(void* comm) {
  const std::scoped_lock lock(mutex);
  return outstanding[comm] >= 8;
}

/// Sends what was held back; the copy stays until the process ends.
void let_go(void* comm) {
  const std::scoped_lock lock(mutex);
  if (const auto entry = held_back.find(comm); entry != held_back.end()) {
    auto* data = new std::vector<std::byte>(std::move(entry->second.data));
    void* request = nullptr;
    real().isend(comm,
                 data->data(),
                 static_cast<int>(data->size()),
                 entry->second.tag,
                 entry->second.mr,
                 &request);
    held_back.erase(entry);
  }
}

Result isend(void* comm, void* data, int bytes, int tag, void* mr, void** request) {
  if (is("request-unwritten") && ++calls % 3 == 0) {
    return Result::kSuccess;
  }
  if (is("full-is-an-error") && is_over_the_limit(comm)) {
    *request = nullptr;
    return Result::kInternalError;
  }
  if (is("writes-to-sends")) {
    volatile auto* first = static_cast<std::byte*>(data);
    first[0] = first[0];
  }
  auto wrapped = std::make_unique<Wrapped>();
  wrapped->comm = comm;
  wrapped->is_send = true;
  wrapped->count = 1;
  wrapped->bytes[0] = bytes;
  const bool is_swapped = is("order-swapped") && bytes > 0 && ++calls % 10 == 5;
  if ((is("zero-lost") && bytes == 0) || is_swapped) {
    if (is_swapped) {
      const std::scoped_lock lock(mutex);
      const auto* begin = static_cast<std::byte*>(data);
      held_back[comm] = {{begin, begin + bytes}, tag, mr};
    }
    *request = wrapped.release();
    return Result::kSuccess;
  }
  static std::byte one{};
  if (is("zero-is-one") && bytes == 0) {
    data = &one;
    bytes = 1;
  }
  std::unique_lock lock(mutex, std::defer_lock);
  if (is("done-early")) {
    lock.lock();  // The thread of the ghosts uses the comm.
  }
  const Result result =
      real().isend(comm, data, bytes, is("tag-ignored") ? 0 : tag, mr, &wrapped->request);
  if (lock.owns_lock()) {
    lock.unlock();
  }
  if (is("order-swapped") && wrapped->request != nullptr) {
    let_go(comm);
  }
  return wrap(result, std::move(wrapped), request);
}

Result irecv(
    void* comm, int count, void** data, int* bytes, int* tags, void** mrs, void** request) {
  auto wrapped = std::make_unique<Wrapped>();
  wrapped->comm = comm;
  wrapped->count = count;
  std::array<int, 8> own_tags{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    wrapped->data[i] = static_cast<std::byte*>(data[i]);
    wrapped->bytes[i] = bytes[i];
    own_tags[i] = is("tag-ignored") ? 0 : tags[i];
  }
  if (is("truncates") && count == 1) {
    constexpr int kRoom = 1 << 20;
    wrapped->own = std::make_unique<std::byte[]>(kRoom);  // NOLINT(modernize-avoid-c-arrays)
    void* own = wrapped->own.get();
    int room = kRoom;
    const Result result =
        real().irecv(comm, 1, &own, &room, own_tags.data(), mrs, &wrapped->request);
    return wrap(result, std::move(wrapped), request);
  }
  const Result result =
      real().irecv(comm, count, data, bytes, own_tags.data(), mrs, &wrapped->request);
  return wrap(result, std::move(wrapped), request);
}

Result iflush(void* comm, int count, void** data, int* bytes, void** mrs, void** request) {
  return real().iflush(comm, count, data, bytes, mrs, request);
}

/// What a completed receive looks like in the mutant.
void spoil(Wrapped* wrapped, std::array<int, 8>* reported) {
  std::byte* data = wrapped->data[0];
  const int size = (*reported)[0];
  if (is("size-posted")) {
    (*reported) = wrapped->bytes;
  }
  if (is("corrupts") && size >= 100) {
    data[size - 1] ^= std::byte{1};
  }
  if (is("corrupts-large") && size >= (1 << 20)) {
    data[size / 2] ^= std::byte{0x10};
  }
  if (is("writes-beyond") && size < wrapped->bytes[0]) {
    data[size] = std::byte{0};
  }
  if (is("truncates") && wrapped->own != nullptr) {
    (*reported)[0] = std::min(size, wrapped->bytes[0]);
    std::memcpy(data, wrapped->own.get(), static_cast<std::size_t>((*reported)[0]));
  }
}

Result test(void* request, int* done, int* sizes) {
  auto* const wrapped = static_cast<Wrapped*>(request);
  const int before = *done;
  std::array<int, 8> reported = wrapped->bytes;
  Result result = Result::kSuccess;
  *done = 1;
  if (wrapped->is_send && is("done-early") && wrapped->request != nullptr) {
    const std::scoped_lock lock(mutex);
    ghosts[wrapped->comm].push_back(wrapped);
    if (sizes != nullptr) {
      sizes[0] = wrapped->bytes[0];
    }
    return Result::kSuccess;
  }
  if (wrapped->request != nullptr) {
    result = real().test(wrapped->request, done, reported.data());
  }
  if (!wrapped->is_send && is("one-completes-two")) {
    const std::scoped_lock lock(mutex);
    if (*done == 1) {
      completes_next[wrapped->comm] = true;
    } else if (completes_next[wrapped->comm]) {
      completes_next[wrapped->comm] = false;
      *done = 1;
    }
  }
  if (result != Result::kSuccess && is("test-hides-errors")) {
    *done = 0;
    return Result::kSuccess;
  }
  if (result != Result::kSuccess || *done == 0) {
    if (is("done-unwritten")) {
      *done = before;
    }
    return result;
  }
  if (wrapped->is_send) {
    reported = wrapped->bytes;
  } else {
    spoil(wrapped, &reported);
  }
  if (sizes != nullptr) {
    const std::size_t count =
        is("sizes-beyond") ? std::size_t{8} : static_cast<std::size_t>(wrapped->count);
    std::memcpy(sizes, reported.data(), count * sizeof(int));
  }
  {
    const std::scoped_lock lock(mutex);
    --outstanding[wrapped->comm];
  }
  delete wrapped;
  return Result::kSuccess;
}

Result close_send(void* comm) {
  if (is("close-leaks")) {
    (void)::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  while (is("close-waits")) {
    const std::scoped_lock lock(mutex);
    if (outstanding[comm] <= 0) {
      break;
    }
  }
  {
    const std::scoped_lock lock(mutex);
    outstanding.erase(comm);
    ghosts.erase(comm);
    held_back.erase(comm);
  }
  return real().close_send(comm);
}

Result close_recv(void* comm) {
  {
    const std::scoped_lock lock(mutex);
    outstanding.erase(comm);
    completes_next.erase(comm);
  }
  return real().close_recv(comm);
}

Result close_listen(void* comm) {
  return real().close_listen(comm);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const NetV8 ncclNetPlugin_v8;
const NetV8 ncclNetPlugin_v8 = {
    .name = "MUTANT",
    .init = init,
    .devices = devices,
    .get_properties = get_properties,
    .listen = listen,
    .connect = connect,
    .accept = accept,
    .reg_mr = reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = dereg_mr,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .close_send = close_send,
    .close_recv = close_recv,
    .close_listen = close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
};
