// NCCL, opened when it is first asked for. lightcc neither links nor brings it.
#pragma once

#include <string>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"

#include "lightcc_cuda/nccl/functions.hpp"

namespace lightcc::cuda {

inline constexpr const char* kNcclFile = "libnccl.so.2";

/// An NCCL that is there, is new enough and has every function. It stays loaded. Thread: any.
class NcclLibrary {
 public:
  /// What the process has loaded already, as a process can have one NCCL only. Else `file`, or,
  /// where that is empty, what the loader finds.
  /// Errors, kUnimplemented: "no NCCL, because ...".
  static Result<NcclLibrary> open(const std::string& file);

  const NcclFunctions& call() const { return functions_; }
  /// As NCCL counts: 22005 is 2.20.5.
  int version() const { return version_; }
  /// The file that was opened.
  std::string path() const;
  /// OK, or what `code` of the call `what` means: "ncclAllReduce: ...".
  /// Errors: kPeerFailed, NCCL blames another rank; kSystem.
  Status check(NcclCode code, const char* what) const;

 private:
  NcclFunctions functions_;
  int version_ = 0;
};

/// "2.20.5" of 22005.
std::string nccl_version_text(int version);

/// The version of the NCCL that `file` or the search finds. Errors: of NcclLibrary::open().
LIGHTCC_EXPORT Result<int> find_nccl(const std::string& file);

}  // namespace lightcc::cuda
