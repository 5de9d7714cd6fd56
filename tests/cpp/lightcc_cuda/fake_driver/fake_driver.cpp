// What tests ask the fake driver for. The driver's functions have files of their own: devices,
// memory, streams, modules.
#include "lightcc_cuda/fake_driver/fake_driver.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "lightcc_cuda/fake_driver/calls.hpp"

namespace lightcc::cuda::fake {

[[gnu::visibility("default")]] void set(const std::string& text) {
  settings().set(text);
  traffic().forget();
  pinned_memories().begin_growth();
}
[[gnu::visibility("default")]] Copies copies_of(int device) {
  return traffic().of(device);
}
[[gnu::visibility("default")]] int calls() {
  return traffic().calls();
}
[[gnu::visibility("default")]] int launches() {
  return traffic().launches();
}
[[gnu::visibility("default")]] int modules_loaded() {
  return traffic().modules();
}
[[gnu::visibility("default")]] int timed_events() {
  return traffic().timed_events();
}
[[gnu::visibility("default")]] std::map<int, int> streams_by_priority() {
  return traffic().streams();
}
[[gnu::visibility("default")]] std::size_t pinned_growth() {
  return pinned_memories().growth();
}
[[gnu::visibility("default")]] int spoiled_captures_of_graphs() {
  return spoiled_captures;
}
[[gnu::visibility("default")]] int live() {
  return live_objects;
}
[[gnu::visibility("default")]] void lightcc_fake_cuda_set(const char* settings) {
  set(settings);
}
[[gnu::visibility("default")]] int lightcc_fake_cuda_live() {
  return live_objects;
}
[[gnu::visibility("default")]] void lightcc_fake_cuda_enqueue(StreamHandle* stream,
                                                              void (*operation)(void*),
                                                              void* argument,
                                                              void (*give_back)(void*)) {
  enqueue(stream, [operation, owned = std::shared_ptr<void>(argument, give_back)] {
    operation(owned.get());
  });
}
[[gnu::visibility("default")]] void* lightcc_fake_cuda_memory(Address address) {
  return find_device_memory(address);
}

}  // namespace lightcc::cuda::fake
