#include "lightcc_cuda/nccl/library.hpp"

#include <dlfcn.h>

namespace lightcc::cuda {
namespace {

Status no_nccl(const std::string& why) {
  return {ErrorCode::kUnimplemented, "no NCCL, because " + why};
}

Result<void*> open_library(const std::string& wanted) {
  void* library = ::dlopen(kNcclFile, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    library = ::dlopen(wanted.empty() ? kNcclFile : wanted.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return no_nccl(std::string("it cannot be opened: ") +
                   ::dlerror());  // NOLINT(concurrency-mt-unsafe): of this thread
  }
  return library;
}

/// The first symbol that `library` lacks, or null.
const char* load_nccl_functions(void* library, NcclFunctions& functions) {
  // NOLINTBEGIN(bugprone-macro-parentheses): members and symbols take none.
#define LIGHTCC_NCCL_LOAD(member, symbol, result, arguments)          \
  functions.member = reinterpret_cast<decltype(functions.member)>(    \
      ::dlsym(library, #symbol)); /* NOLINT(concurrency-mt-unsafe) */ \
  if (functions.member == nullptr) {                                  \
    return #symbol;                                                   \
  }
  // NOLINTEND(bugprone-macro-parentheses)
  LIGHTCC_NCCL_FUNCTIONS(LIGHTCC_NCCL_LOAD)
#undef LIGHTCC_NCCL_LOAD
  return nullptr;
}

}  // namespace

// 2804 is 2.8.4; from 2.9 on there are two digits for the minor version.
std::string nccl_version_text(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version / 100 % 10 : version / 100 % 100;
  return std::to_string(major) + '.' + std::to_string(minor) + '.' + std::to_string(version % 100);
}

Result<NcclLibrary> NcclLibrary::open(const std::string& file) {
  LIGHTCC_ASSIGN_OR_RETURN(void* const library, open_library(file));
  // Asked first, since a library that is too old lacks what comes later.
  const auto get_version = reinterpret_cast<NcclCode (*)(int*)>(
      ::dlsym(library, "ncclGetVersion"));  // NOLINT(concurrency-mt-unsafe)
  int version = 0;
  if (get_version != nullptr && get_version(&version) == kNcclSuccess && version < kOldestNccl) {
    return no_nccl("it is of version " + nccl_version_text(version) + "; needed is " +
                   nccl_version_text(kOldestNccl) + " or newer");
  }
  NcclLibrary opened;
  opened.version_ = version;
  if (const char* const missing = load_nccl_functions(library, opened.functions_);
      missing != nullptr) {
    return no_nccl("the library has no " + std::string(missing));
  }
  return opened;
}

std::string NcclLibrary::path() const {
  Dl_info found{};
  const bool is_known = ::dladdr(reinterpret_cast<const void*>(functions_.all_reduce), &found) != 0;
  return is_known && found.dli_fname != nullptr ? found.dli_fname : kNcclFile;
}

Status NcclLibrary::check(NcclCode code, const char* what) const {
  if (code == kNcclSuccess) {
    return {};
  }
  if (code == kNcclInProgress) {
    return {ErrorCode::kSystem,
            std::string(what) + ": NCCL does not block, by NCCL_COMM_BLOCKING=0; unset that"};
  }
  const char* const meaning = call().error_text(code);
  const char* const detail = call().last_error(nullptr);  // It is the process's.
  std::string text = std::string(what) + ": " + (meaning == nullptr ? "unknown error" : meaning);
  text += " (NCCL error " + std::to_string(code) + ")";
  if (detail != nullptr && *detail != '\0') {
    text += std::string(": ") + detail;
  }
  return {code == kNcclRemoteError ? ErrorCode::kPeerFailed : ErrorCode::kSystem, text};
}

Result<int> find_nccl(const std::string& file) {
  LIGHTCC_ASSIGN_OR_RETURN(const NcclLibrary library, NcclLibrary::open(file));
  return library.version();
}

}  // namespace lightcc::cuda
