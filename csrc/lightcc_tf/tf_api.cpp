#include "tf_api.hpp"

#include <dlfcn.h>

namespace lightcc::tf {
namespace {

Api loaded;

}  // namespace

const Api& api() {
  return loaded;
}

Status load_api() {
  // Never loads TensorFlow: finds the one that the process has imported.
  void* library = ::dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    library = RTLD_DEFAULT;  // Linked into another library, or into the program.
  }
#define LIGHTCC_TF_LOOK_UP(member, symbol, result, arguments)                                    \
  loaded.member = reinterpret_cast<decltype(loaded.member)>(::dlsym(library, symbol));           \
  if (loaded.member == nullptr) {                                                                \
    return make_error(ErrorCode::kUnimplemented,                                                 \
                      "the TensorFlow of this process has no %s: lightcc needs TensorFlow 2.14 " \
                      "or later, imported first",                                                \
                      symbol);                                                                   \
  }
  LIGHTCC_TF_FUNCTIONS(LIGHTCC_TF_LOOK_UP)
#undef LIGHTCC_TF_LOOK_UP
  return {};
}

Status CallStatus::to_status(const char* what) const {
  return ok() ? Status() : make_error(ErrorCode::kSystem, "%s: %s", what, api().message(status_));
}

}  // namespace lightcc::tf
