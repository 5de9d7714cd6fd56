#include "library.hpp"

#include <dlfcn.h>

namespace net_conform {

std::string Library::load() {
  // NCCL does the same.
  handle_ = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    return ::dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
  }
  const std::string symbol = "ncclNetPlugin_v" + std::to_string(version_);
  const void* table = ::dlsym(handle_, symbol.c_str());
  if (table == nullptr) {
    return path_ + " has no " + symbol;
  }
  driver_ = make_driver(version_, table);
  return {};
}

void Library::unload() {
  driver_.reset();
  if (handle_ != nullptr) {
    ::dlclose(handle_);
    handle_ = nullptr;
  }
}

}  // namespace net_conform
