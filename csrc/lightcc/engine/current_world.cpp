#include "lightcc/engine/current_world.hpp"

#include <pthread.h>

#include <atomic>

#include "lightcc/base/mutex.hpp"

namespace lightcc {
namespace {

struct CurrentWorld {
  Mutex mutex;
  World* world LIGHTCC_GUARDED_BY(mutex) = nullptr;
};

// A child of fork() gets a new one, because the mutex may be held by a thread that it has not.
std::atomic<CurrentWorld*> current{nullptr};

CurrentWorld& current_world() {
  static const int kInstalled =
      ::pthread_atfork(nullptr, nullptr, [] { current.store(new CurrentWorld); });
  static_cast<void>(kInstalled);
  CurrentWorld* found = current.load();
  if (found == nullptr) {
    auto* made = new CurrentWorld;  // Stays as long as the process.
    if (current.compare_exchange_strong(found, made)) {
      return *made;
    }
    delete made;
  }
  return *found;
}

}  // namespace

void set_current_world(World* world) {
  CurrentWorld& slot = current_world();
  const MutexLock lock(slot.mutex);
  slot.world = world;
}

bool use_current_world(const std::function<void(World&)>& use) {
  CurrentWorld& slot = current_world();
  const MutexLock lock(slot.mutex);
  if (slot.world == nullptr) {
    return false;
  }
  use(*slot.world);
  return true;
}

}  // namespace lightcc
