// NVIDIA's driver, opened when it is first asked for. The library links nothing of CUDA.
#pragma once

#include <string>
#include <string_view>

#include "lightcc/base/status.hpp"

#include "lightcc_cuda/driver/functions.hpp"

namespace lightcc::cuda {

inline constexpr const char* kDriverFile = "libcuda.so.1";
/// CUDA 11.2, as drivers count: the first one whose GPUs have memory pools.
inline constexpr int kOldestDriver = 11020;

/// A driver that is there, is new enough, and has been initialised. It stays loaded, as other parts
/// of the process may use it as well. Thread: any.
class Driver {
 public:
  /// Opens `file` and initialises it. Errors, kUnimplemented: there is none, it is too old, it
  /// lacks a function, or it says that it cannot work here. The message says why, and nothing else.
  static Result<Driver> open(const std::string& file = kDriverFile);

  const Functions& call() const { return functions_; }
  int version() const { return version_; }
  /// OK, or what `code` of the call `what` means: "cuInit: CUDA_ERROR_NO_DEVICE (...)". kSystem.
  Status check(Code code, std::string_view what) const;
  /// The compute capability of a GPU: 86 is sm_86. Errors: kSystem.
  Result<int> capability(Device device) const;

  // Each function by its member's name, checked.
  // NOLINTBEGIN(bugprone-macro-parentheses): members take none.
#define LIGHTCC_CUDA_CALL(member, symbol, ...)              \
  template <typename... Arguments>                          \
  Status member(Arguments... arguments) const {             \
    return check(functions_.member(arguments...), #symbol); \
  }
  // NOLINTEND(bugprone-macro-parentheses)
  LIGHTCC_CUDA_FUNCTIONS(LIGHTCC_CUDA_CALL)
  LIGHTCC_CUDA_LATER_FUNCTIONS(LIGHTCC_CUDA_CALL)
#undef LIGHTCC_CUDA_CALL

 private:
  Functions functions_;
  int version_ = 0;
};

/// "12.8" of 12080.
std::string version_text(int version);

}  // namespace lightcc::cuda
