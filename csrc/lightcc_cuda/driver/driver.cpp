#include "lightcc_cuda/driver/driver.hpp"

#include <dlfcn.h>

namespace lightcc::cuda {
namespace {

Status unusable(const std::string& why) {
  return {ErrorCode::kUnimplemented, why};
}

/// The first needed symbol that `library` lacks, or null.
const char* load_functions(void* library, Functions& functions) {
  // NOLINTBEGIN(bugprone-macro-parentheses): members and symbols take none.
#define LIGHTCC_CUDA_LOAD(member, symbol, arguments)               \
  functions.member = reinterpret_cast<decltype(functions.member)>( \
      ::dlsym(library, #symbol)); /* NOLINT(concurrency-mt-unsafe) */
#define LIGHTCC_CUDA_NEED(member, symbol, arguments) \
  if (functions.member == nullptr) {                 \
    return #symbol;                                  \
  }
  // NOLINTEND(bugprone-macro-parentheses)
  LIGHTCC_CUDA_FUNCTIONS(LIGHTCC_CUDA_LOAD)
  LIGHTCC_CUDA_LATER_FUNCTIONS(LIGHTCC_CUDA_LOAD)
  LIGHTCC_CUDA_FUNCTIONS(LIGHTCC_CUDA_NEED)
#undef LIGHTCC_CUDA_NEED
#undef LIGHTCC_CUDA_LOAD
  return nullptr;
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
}

Result<Driver> Driver::open(const std::string& file) {
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return unusable(std::string("the CUDA driver cannot be opened: ") +
                    ::dlerror());  // NOLINT(concurrency-mt-unsafe): of this thread
  }
  // Asked first, since a driver that is too old may lack what comes later.
  const auto get_version = reinterpret_cast<Code (*)(int*)>(::dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (get_version != nullptr && get_version(&version) == kSuccess && version < kOldestDriver) {
    return unusable("the CUDA driver " + file + " is for CUDA " + version_text(version) +
                    "; needed is one for CUDA " + version_text(kOldestDriver) +
                    " (version 460) or newer");
  }
  Driver driver;
  driver.version_ = version;
  if (const char* const missing = load_functions(library, driver.functions_); missing != nullptr) {
    return unusable("the CUDA driver " + file + " is broken: it has no " + missing);
  }
  if (const Code code = driver.call().init(0); code != kSuccess) {
    return unusable("the CUDA driver does not work here: " +
                    driver.check(code, "cuInit").message());
  }
  return driver;
}

Result<int> Driver::capability(Device device) const {
  int major = 0;
  int minor = 0;
  LIGHTCC_RETURN_IF_ERROR(device_attribute(&major, kMajorOfCapability, device));
  LIGHTCC_RETURN_IF_ERROR(device_attribute(&minor, kMinorOfCapability, device));
  return 10 * major + minor;
}

Status Driver::check(Code code, std::string_view what) const {
  if (code == kSuccess) {
    return {};
  }
  const std::string call_name(what.substr(0, what.find("_v2")));  // As users know it.
  const char* name = nullptr;
  const char* text = nullptr;
  if (call().error_name(code, &name) != kSuccess || name == nullptr) {
    return make_error(ErrorCode::kSystem, "%s: CUDA error %d", call_name.c_str(), code);
  }
  if (call().error_text(code, &text) != kSuccess || text == nullptr) {
    text = "no description";
  }
  return make_error(ErrorCode::kSystem, "%s: %s (%s)", call_name.c_str(), name, text);
}

}  // namespace lightcc::cuda
